-- ARGV: most entries, budget of bytes, bytes up to which a payload comes whole, bytes of a longer one.
-- Returns types and TTLs (ms) of the four keys; record, owner (false for none); number of intents; the stream's length,
-- entries ever added (-1: not told), last generated and highest deleted id; first entries, and whether there are more.
-- Writes nothing: called by EVALSHA_RO.
local types, ttls = {}, {}
for i, key in ipairs({RECORD, EVENTS, OWNER, INTENT}) do
  types[i] = redis.call('TYPE', key)['ok']
  ttls[i] = redis.call('PTTL', key)
end

local stream, entries, more = {0, -1, '0-0', '0-0'}, {}, 0
if types[2] == 'stream' then
  local info, told = redis.call('XINFO', 'STREAM', EVENTS), {}
  for i = 1, #info, 2 do told[info[i]] = info[i + 1] end
  stream = {told['length'], told['entries-added'] or -1, told['last-generated-id'], told['max-deleted-entry-id'] or '0-0'}
  entries, more = entries_after('0-0', tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]))
end
return {
  types,
  ttls,
  types[1] == 'string' and redis.call('GET', RECORD),
  types[3] == 'string' and redis.call('GET', OWNER),
  types[4] == 'stream' and redis.call('XLEN', INTENT) or 0,
  stream,
  entries,
  more,
}

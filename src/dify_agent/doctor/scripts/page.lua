-- ARGV: cursor (exclusive), then as look.lua. Returns further entries, and whether there are more. Writes nothing.
if redis.call('TYPE', EVENTS)['ok'] ~= 'stream' then return {{}, 0} end
local entries, more =
  entries_after(ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]))
return {entries, more}

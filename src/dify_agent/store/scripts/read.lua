-- ARGV: cursor (exclusive), most entries, most bytes of payload.
-- Returns the record (false when there is none) and the entries. The first entry comes whatever its size.
-- Looks at a few entries first and at more while they are small, so that large ones are not copied for nothing.
local stored = redis.call('GET', RECORD)
if not stored then return {false, {}} end

local entries, bytes, from, step = {}, 0, '(' .. ARGV[1], 4
local left, most = tonumber(ARGV[2]), tonumber(ARGV[3])
while left > 0 do
  local wanted = math.min(left, step)
  local page = redis.call('XRANGE', EVENTS, from, '+', 'COUNT', wanted)
  for _, entry in ipairs(page) do
    bytes = bytes + #entry[2][2]
    if bytes > most and #entries > 0 then return {stored, entries} end
    entries[#entries + 1] = entry
  end
  if #page < wanted then break end
  left, from, step = left - #page, '(' .. page[#page][1], step * 4
end
return {stored, entries}

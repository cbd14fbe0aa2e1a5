-- Stands before every script on a run. KEYS are one run's: record, events, owner, intent.
local RECORD, EVENTS, OWNER, INTENT = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

-- The entries behind a cursor, and whether there may be more. Of a payload above `whole` bytes only `head` bytes are
-- returned. Looks at one entry first and at more while they are small: large ones are copied one at a time.
local function entries_after(cursor, most, budget, whole, head)
  local entries, bytes, from, step = {}, 0, '(' .. cursor, 1
  while #entries < most do
    local wanted = math.min(most - #entries, step)
    local page = redis.pcall('XRANGE', EVENTS, from, '+', 'COUNT', wanted)
    if page.err then return entries, 0 end -- behind the highest id there is
    for _, entry in ipairs(page) do
      local fields = entry[2]
      if #fields ~= 2 or fields[1] ~= 'payload' then
        entries[#entries + 1] = {entry[1], -1, ''}
      else
        local size = #fields[2]
        bytes = bytes + size
        entries[#entries + 1] = {entry[1], size, size <= whole and fields[2] or string.sub(fields[2], 1, head)}
      end
    end
    if #page < wanted then return entries, 0 end
    if bytes >= budget then break end
    -- As many as fit into what is left, judged by those seen, and at most four times as many as before.
    local fitting = bytes > 0 and math.floor((budget - bytes) / (bytes / #entries)) or step * 4
    from, step = '(' .. page[#page][1], math.max(1, math.min(step * 4, fitting))
  end
  return entries, 1
end

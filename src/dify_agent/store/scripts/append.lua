-- ARGV: expected top, maximal length, retention, then id and payload of each event, ids ascending.
-- Returns 'appended', 'sealed', 'gap', 'missing' or 'unreadable'. Only 'appended' has written.
local stored = redis.call('GET', RECORD)
if not stored then return 'missing' end
local status = status_of(stored)
if status == 'unreadable' then return status end
if status ~= 'running' then return 'sealed' end

local top, first = top_of(EVENTS), nil
if top == ARGV[1] then
  first = 4
else
  -- An earlier try got as far as this and its reply was lost.
  for i = 4, #ARGV, 2 do
    if ARGV[i] == top then
      first = i + 2
      break
    end
  end
end
if not first then return 'gap' end

for i = first, #ARGV, 2 do
  redis.call('XADD', EVENTS, 'MAXLEN', '~', ARGV[2], ARGV[i], 'payload', ARGV[i + 1])
end
keep(ARGV[3], RECORD, EVENTS, OWNER, INTENT)
return 'appended'

-- Stands before every script. KEYS are one run's: record, events, owner, intent. The claim scripts have a key of theirs.
local RECORD, EVENTS, OWNER, INTENT = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

-- The record's status. The record is decoded to be read, never encoded: cjson would turn [] into {} and round integers.
local function status_of(record)
  local ok, decoded = pcall(cjson.decode, record)
  if ok and type(decoded) == 'table' and type(decoded.status) == 'string' then return decoded.status end
  return 'unreadable'
end

-- Id of the newest event, '0-0' for an empty log.
local function top_of(events)
  local newest = redis.call('XREVRANGE', events, '+', '-', 'COUNT', 1)
  if newest[1] then return newest[1][1] end
  return '0-0'
end

-- Whether a cancel was accepted. A stream without entries is no intent.
local function has_intent()
  return redis.call('XLEN', INTENT) > 0
end

local function keep(seconds, ...)
  for _, key in ipairs({...}) do redis.call('EXPIRE', key, seconds) end
end

-- Rewrites the record, appends the events that ARGV has from `first` on (ids and payloads) and the terminal event, whose
-- id follows the top: ordinal + 1, and never a smaller time.
-- SET comes first: out of memory, read-only and the like refuse a script's first write, and after it no other.
local function seal(record, payload, ms, max_length, retention, first)
  local top = top_of(EVENTS) -- of what is no stream this fails, and nothing is written
  redis.call('SET', RECORD, record, 'EX', retention)
  for i = first or #ARGV + 1, #ARGV, 2 do
    redis.call('XADD', EVENTS, 'MAXLEN', '~', max_length, ARGV[i], 'payload', ARGV[i + 1])
    top = ARGV[i]
  end
  local top_ms, top_n = string.match(top, '^(%d+)-(%d+)$')
  local id = string.format('%.0f-%.0f', math.max(tonumber(ms), tonumber(top_ms)), tonumber(top_n) + 1)
  redis.call('XADD', EVENTS, 'MAXLEN', '~', max_length, id, 'payload', payload)
  keep(retention, EVENTS, OWNER)
  return id
end

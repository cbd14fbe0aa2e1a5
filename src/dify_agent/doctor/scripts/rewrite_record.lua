-- ARGV: the record as it was read, the new one, id of the terminal event, which must be the log's newest.
-- Returns 1 when the record was rewritten, 0 when anything has changed meanwhile. The run has ended: its intent goes.
if redis.call('GET', RECORD) ~= ARGV[1] then return 0 end
local newest = redis.call('XREVRANGE', EVENTS, '+', '-', 'COUNT', 1)
if not newest[1] or newest[1][1] ~= ARGV[3] then return 0 end
redis.call('SET', RECORD, ARGV[2], 'KEEPTTL')
redis.call('DEL', INTENT)
return 1

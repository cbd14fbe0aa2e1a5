-- ARGV: the record as it was read, the longest TTL (ms) at which nobody is taken to touch the run any more.
-- Returns 1 while the run has that record, no owner key, and was left alone for so long. Writes nothing.
if redis.call('GET', RECORD) ~= ARGV[1] or redis.call('EXISTS', OWNER) == 1 then return 0 end
local ttl = redis.call('PTTL', RECORD)
return (ttl >= 0 and ttl <= tonumber(ARGV[2])) and 1 or 0

-- Returns record, owner and the intent's payload, each false when there is none.
local intent = redis.call('XRANGE', INTENT, '-', '+', 'COUNT', 1)
return {redis.call('GET', RECORD), redis.call('GET', OWNER), intent[1] and intent[1][2][2] or false}

-- KEYS: the idempotency key. ARGV: new claim, claim that it may displace ('' for none), retention.
-- Returns the claim that stands: the new one (now, or by an earlier try of the same call), or the one that was there.
local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[1] and (held ~= ARGV[2] or held == '') then return held end
redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[3])
return ARGV[1]

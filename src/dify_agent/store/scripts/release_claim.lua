-- KEYS: the idempotency key. ARGV: the claim that is given up; another one stays. Returns how many were deleted.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])

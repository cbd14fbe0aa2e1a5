-- KEYS are one owner's: alive, seen, runs. ARGV: a run id. Takes it out of the set of an owner that has no lease and
-- was not seen for a retention, or had left a while ago. Returns how many were taken out.
if redis.call('EXISTS', KEYS[1], KEYS[2]) > 0 then return 0 end
return redis.call('SREM', KEYS[3], ARGV[1])

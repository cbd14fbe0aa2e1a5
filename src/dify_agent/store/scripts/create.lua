-- ARGV: record, owner, retention. Returns 'created' (now, or by an earlier try of the same call) or 'exists'.
local stored = redis.call('GET', RECORD)
if stored then
  if stored == ARGV[1] and redis.call('GET', OWNER) == ARGV[2] then return 'created' end
  return 'exists'
end
redis.call('SET', RECORD, ARGV[1], 'EX', ARGV[3])
redis.call('SET', OWNER, ARGV[2], 'EX', ARGV[3])
return 'created'

-- Deletes the intent of a run that has no record, or one that has ended. Returns how many were deleted.
local stored = redis.call('GET', RECORD)
if stored then
  local ok, decoded = pcall(cjson.decode, stored)
  local status = ok and type(decoded) == 'table' and decoded.status
  if status ~= 'succeeded' and status ~= 'failed' and status ~= 'cancelled' then return 0 end
end
return redis.call('DEL', INTENT)

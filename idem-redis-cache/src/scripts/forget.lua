-- Removes the entry if it is still that of this attempt: compare and delete.
-- KEYS[1]: the entry. ARGV[1]: how its first bytes must read. ARGV[2]: the place of the last of them.
if redis.pcall('GETRANGE', KEYS[1], 0, ARGV[2]) == ARGV[1] then
    return redis.call('DEL', KEYS[1])
end
return 0

-- Removes the entry if it is still that of this attempt: compare and delete.
-- KEYS[1]: the entry. ARGV[1]: how its first bytes must read. ARGV[2]: the place of the last of them.
local value = redis.pcall('GETRANGE', KEYS[1], 0, ARGV[2])
if value == ARGV[1] then
    return redis.call('DEL', KEYS[1])
end
-- Another type than a string is not ours. Whoever may not read must hear of it.
if type(value) ~= 'string' and not string.find(value.err, 'WRONGTYPE', 1, true) then
    return value
end
return 0

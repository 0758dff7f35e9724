//! Keys of a store, and the scripts that read and change them.
//!
//! # Keys
//!
//! All have the prefix in braces, the hash tag by which a cluster puts them into one slot. `I` is
//! the name of an index.
//!
//! | key            | type       | holds                                                                          |
//! |----------------|------------|--------------------------------------------------------------------------------|
//! | `{P}:meta`     | hash       | the fields below                                                               |
//! | `{P}:lock`     | string     | the token of the process that writes; expires with its lease                   |
//! | `{P}:v`        | hash       | key to value of the main table                                                 |
//! | `{P}:k`        | sorted set | its keys, all of score 0, thus in the order of their bytes                     |
//! | `{P}:v:I`      | hash       | the same of an index                                                           |
//! | `{P}:k:I`      | sorted set | the same                                                                       |
//! | `{P}:s:T:N`    | list       | part `N` of a large commit of token `T` on its way; expires with the lease     |
//! | `{P}:probe:..` | various    | for a moment when a store is opened for writing: whether all commands are allowed |
//!
//! | field     | meaning                                                                                    |
//! |-----------|--------------------------------------------------------------------------------------------|
//! | `format`  | [`FORMAT`]                                                                                 |
//! | `version` | number of the last commit, 0 at first                                                      |
//! | `commit`  | id of the last commit: token and a number                                                  |
//! | `owner`   | token of the process that last took the lock                                               |
//! | `fence`   | a commit takes place only if it was sent with this number; raised to void one that is late |
//! | `pending` | id of the commit that is being carried out: seen only if one was broken off half way       |
//!
//! # Invariants
//!
//! A hash and its sorted set have the same keys. The server executes a script as a whole, and
//! writes its changes to its files as a whole. Each script makes all its checks before its first
//! change.

use std::sync::LazyLock;

use ::redis::{Cmd, Value};
use terrane_kv::Result;

use super::error::{bad_reply, corrupt};

/// Number of the layout.
pub(crate) const FORMAT: &str = "1";
/// Most entries of an operation: Lua can unpack fewer than 8,000 values into the arguments of one
/// command.
pub(crate) const OPERATION_ENTRIES_MAX: usize = 1_000;

/// A script, and its name in errors.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) name: &'static str,
    source: String,
    sha: String,
}

impl Script {
    fn new(name: &'static str, parts: &[&str]) -> Self {
        let source = parts.concat();
        let sha = ::redis::Script::new(&source).get_hash().to_owned();
        Self { name, source, sha }
    }
}

/// A script with its keys and arguments.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) script: &'a Script,
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) arguments: Vec<&'a [u8]>,
}

impl Call<'_> {
    /// The command that names the script by its hash, or the one that brings it.
    pub(crate) fn command(&self, by_hash: bool) -> Cmd {
        let bytes: usize = self.arguments.iter().map(|argument| argument.len()).sum();
        let count = 3 + self.keys.len() + self.arguments.len();

        // There is room for the whole command, so that a large commit is copied once.
        let mut command = Cmd::with_capacity(count, bytes + 64 * self.keys.len() + 4096);
        // The source goes only to servers that do not know the script yet.
        if by_hash {
            command.arg("EVALSHA").arg(&self.script.sha);
        } else {
            command.arg("EVAL").arg(&self.script.source);
        }

        command.arg(self.keys.len());
        for key in &self.keys {
            command.arg(key);
        }

        for argument in &self.arguments {
            command.arg(*argument);
        }

        command
    }
}

/// Names of the keys of a store.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    prefix: String,
    indexes: Vec<String>,
}

impl Keys {
    pub(crate) fn new(prefix: &str, indexes: &[String]) -> Self {
        Self { prefix: prefix.to_owned(), indexes: indexes.to_vec() }
    }

    fn key(&self, rest: &str) -> Vec<u8> {
        // The braces put all keys of a database into one slot of a cluster.
        format!("{{{}}}:{rest}", self.prefix).into_bytes()
    }

    pub(crate) fn meta(&self) -> Vec<u8> {
        self.key("meta")
    }

    pub(crate) fn lock(&self) -> Vec<u8> {
        self.key("lock")
    }

    pub(crate) fn probes(&self) -> [Vec<u8>; 3] {
        [self.key("probe:h"), self.key("probe:z"), self.key("probe:l")]
    }

    pub(crate) fn staged(&self, token: &str, part: usize) -> Vec<u8> {
        self.key(&format!("s:{token}:{part}"))
    }

    fn table(&self, kind: char, table: usize) -> Vec<u8> {
        match table.checked_sub(1).and_then(|position| self.indexes.get(position)) {
            Some(index) => self.key(&format!("{kind}:{index}")),
            None => self.key(&kind.to_string()),
        }
    }

    pub(crate) fn values(&self, table: usize) -> Vec<u8> {
        self.table('v', table)
    }

    pub(crate) fn order(&self, table: usize) -> Vec<u8> {
        self.table('k', table)
    }

    /// Number of tables.
    pub(crate) fn tables(&self) -> usize {
        1 + self.indexes.len()
    }
}

/// State of the store, which every script returns.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Meta {
    /// Whether there is a store.
    pub(crate) exists: bool,
    pub(crate) version: u64,
    pub(crate) commit: Vec<u8>,
    pub(crate) owner: Vec<u8>,
}

/// The part of every script that reads [`Meta`].
const META: &str = "local function meta() \
    return redis.call('HMGET', KEYS[1], 'format', 'version', 'commit', 'owner', 'pending') end\n";

impl Meta {
    /// Parses the answer of `meta()`.
    pub(crate) fn parse(call: &'static str, value: Value) -> Result<Self> {
        let Value::Array(fields) = value else { return Err(bad_reply(call)) };
        let Ok([format, version, commit, owner, pending]) = <[Value; 5]>::try_from(fields) else {
            return Err(bad_reply(call));
        };

        let format = bytes_of(call, format)?;
        let version = bytes_of(call, version)?;
        let commit = bytes_of(call, commit)?.unwrap_or_default();

        let owner = bytes_of(call, owner)?.unwrap_or_default();
        let pending = bytes_of(call, pending)?;
        // A database that never was has none of the fields.
        let Some(format) = format else {
            let nothing = version.is_none() && owner.is_empty() && pending.is_none();
            return if nothing { Ok(Self::default()) } else { Err(corrupt("meta has no format")) };
        };

        if format != FORMAT.as_bytes() {
            let format = String::from_utf8_lossy(&format);
            return Err(corrupt(format!("meta: format {format:?}; this version reads {FORMAT}")));
        }

        // A script that the server broke off may have written a part of a commit.
        if pending.is_some() {
            return Err(corrupt("a commit was broken off half way by the server"));
        }

        let version = version.as_deref().and_then(number);
        let version = version.ok_or_else(|| corrupt("meta: version is no number"))?;
        Ok(Self { exists: true, version, commit, owner })
    }
}

/// A number of digits only, as the scripts write it.
fn number(digits: &[u8]) -> Option<u64> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// A string or its absence.
pub(crate) fn bytes_of(call: &'static str, value: Value) -> Result<Option<Vec<u8>>> {
    match value {
        Value::Nil => Ok(None),
        Value::BulkString(bytes) => Ok(Some(bytes)),
        Value::SimpleString(text) => Ok(Some(text.into_bytes())),
        Value::Okay => Ok(Some(b"OK".to_vec())),
        _ => Err(bad_reply(call)),
    }
}

/// The members of an array.
pub(crate) fn array_of<const N: usize>(call: &'static str, value: Value) -> Result<[Value; N]> {
    let Value::Array(members) = value else { return Err(bad_reply(call)) };
    members.try_into().map_err(|_| bad_reply(call))
}

/// A count.
pub(crate) fn count_of(call: &'static str, value: &Value) -> Result<u64> {
    match value {
        Value::Int(count) => u64::try_from(*count).map_err(|_| bad_reply(call)),
        _ => Err(bad_reply(call)),
    }
}

/// KEYS meta; gives the meta.
pub(crate) static STATE: LazyLock<Script> =
    LazyLock::new(|| Script::new("state", &[META, "return meta()"]));

/// KEYS meta, values; ARGV keys. Gives the meta and the values.
pub(crate) static READ: LazyLock<Script> = LazyLock::new(|| {
    Script::new("read", &[META, "return {meta(), redis.call('HMGET', KEYS[2], unpack(ARGV))}"])
});

/// KEYS meta, order, values; ARGV keys. Gives the meta, the count of the table, and how many of
/// `keys` it has.
pub(crate) static COUNT: LazyLock<Script> = LazyLock::new(|| {
    let body = "local n = 0
for i = 1, #ARGV do n = n + redis.call('HEXISTS', KEYS[3], ARGV[i]) end
return {meta(), redis.call('ZCARD', KEYS[2]), n}";
    Script::new("count", &[META, body])
});

/// KEYS meta, order, values; ARGV the two ends in the order of the direction, `REV` or nothing,
/// entries and bytes at most. Gives the meta, 1 if the range ends with them, and the entries, key
/// and value by turns.
pub(crate) static PAGE: LazyLock<Script> = LazyLock::new(|| {
    let body = "local a = {'ZRANGE', KEYS[2], ARGV[1], ARGV[2], 'BYLEX'}
if ARGV[3] == 'REV' then a[#a + 1] = 'REV' end
a[#a + 1] = 'LIMIT'
a[#a + 1] = '0'
a[#a + 1] = ARGV[4]
local keys = redis.call(unpack(a))
local entries, bytes, ended = {}, 0, #keys < tonumber(ARGV[4]) and 1 or 0
for i = 1, #keys do
  local value = redis.call('HGET', KEYS[3], keys[i])
  entries[2 * i - 1] = keys[i]
  entries[2 * i] = value
  if value then bytes = bytes + #keys[i] + #value end
  if bytes >= tonumber(ARGV[5]) and i < #keys then ended = 0 break end
end
return {meta(), ended, entries}";
    Script::new("page", &[META, body])
});

/// KEYS meta, lock, three probes; ARGV token, lease in milliseconds, format. Takes the lock. Gives
/// the meta as it then is, the fence, and nothing or who has the lock and for how many
/// milliseconds.
pub(crate) static ACQUIRE: LazyLock<Script> = LazyLock::new(|| {
    let body = "local holder = redis.call('GET', KEYS[2])
if holder and holder ~= ARGV[1] then
  return {meta(), 0, holder, redis.call('PTTL', KEYS[2])}
end
local now = redis.call('HMGET', KEYS[1], 'format', 'pending')
if now[2] or (now[1] and now[1] ~= ARGV[3]) then return {meta(), 0, false, 0} end
redis.call('DEL', KEYS[3], KEYS[4], KEYS[5])
redis.call('HSET', KEYS[3], 'a', 'a')
redis.call('HDEL', KEYS[3], 'a')
redis.call('ZADD', KEYS[4], '0', 'a')
redis.call('ZRANGE', KEYS[4], '-', '+', 'BYLEX', 'LIMIT', '0', '1')
redis.call('ZREM', KEYS[4], 'a')
redis.call('RPUSH', KEYS[5], 'a')
redis.call('PEXPIRE', KEYS[5], '1000')
redis.call('LLEN', KEYS[5])
redis.call('LRANGE', KEYS[5], '0', '-1')
redis.call('TYPE', KEYS[5])
redis.call('DEL', KEYS[5])
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
redis.call('HSETNX', KEYS[1], 'version', '0')
redis.call('HSET', KEYS[1], 'format', ARGV[3], 'owner', ARGV[1])
return {meta(), redis.call('HINCRBY', KEYS[1], 'fence', 1), false, 0}";
    Script::new("acquire", &[META, body])
});

/// KEYS meta, lock; ARGV token, lease in milliseconds. Renews the lock if nobody else took it.
/// Gives the meta.
pub(crate) static RENEW: LazyLock<Script> = LazyLock::new(|| {
    let body = "if redis.call('HGET', KEYS[1], 'owner') == ARGV[1] then
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
  redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
end
return meta()";
    Script::new("renew", &[META, body])
});

/// KEYS lock; ARGV token. Gives the lock up if it is ours.
pub(crate) static RELEASE: LazyLock<Script> = LazyLock::new(|| {
    let body = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0";
    Script::new("release", &[body])
});

/// KEYS meta; ARGV token, a new fence. Voids commits of ours that the server may still carry out
/// later. Gives the meta.
pub(crate) static FENCE: LazyLock<Script> = LazyLock::new(|| {
    let body = "local now = redis.call('HMGET', KEYS[1], 'owner', 'fence')
if now[1] == ARGV[1] and tonumber(now[2]) < tonumber(ARGV[2]) then
  redis.call('HINCRBY', KEYS[1], 'fence', tonumber(ARGV[2]) - tonumber(now[2]))
end
return meta()";
    Script::new("fence", &[META, body])
});

/// KEYS a list; ARGV lease in milliseconds, `1` if it may pass a full memory, then what to stage.
/// Gives the length.
pub(crate) static STAGE: LazyLock<Script> = LazyLock::new(|| {
    let body =
        "if ARGV[2] == '1' or redis.call('LLEN', KEYS[1]) > 0 then redis.call('DEL', KEYS[1]) end
for i = 3, #ARGV, 5000 do
  redis.call('RPUSH', KEYS[1], unpack(ARGV, i, math.min(i + 4999, #ARGV)))
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return redis.call('LLEN', KEYS[1])";
    Script::new("stage", &[body])
});

/// KEYS staged lists. Removes them.
pub(crate) static UNSTAGE: LazyLock<Script> =
    LazyLock::new(|| Script::new("unstage", &["return redis.call('DEL', unpack(KEYS))"]));

/// KEYS meta, lock, values and order of each table, the staged lists; ARGV token, id, fence,
/// version before and after, lease in milliseconds, `1` if it may pass a full memory, the number of
/// tables, of staged lists, the length of each of them, and the operations that are not staged. An
/// operation is `p` (puts) or `d` (removes), the table's number, how many entries, and these. Gives
/// `done`, or why nothing was changed.
pub(crate) static COMMIT: LazyLock<Script> = LazyLock::new(|| {
    let body =
        "local now = redis.call('HMGET', KEYS[1], 'owner', 'commit', 'fence', 'version', 'pending')
if now[5] then return 'pending' end
if now[2] == ARGV[2] then return 'done' end
if not now[1] then return 'version' end
if now[1] ~= ARGV[1] then return 'owner' end
if now[3] ~= ARGV[3] then return 'fence' end
if now[4] ~= ARGV[4] then return 'version' end
local tables, lists = tonumber(ARGV[8]), tonumber(ARGV[9])
local function is(key, type)
  local found = redis.call('TYPE', key).ok
  return found == type or found == 'none'
end
for t = 0, tables - 1 do
  if not (is(KEYS[3 + 2 * t], 'hash') and is(KEYS[4 + 2 * t], 'zset')) then return 'type' end
end
local first = 3 + 2 * tables
for l = 1, lists do
  if redis.call('LLEN', KEYS[first + l - 1]) ~= tonumber(ARGV[9 + l]) then return 'stage' end
end
if ARGV[7] == '1' then redis.call('PEXPIRE', KEYS[2], ARGV[6]) end
redis.call('HSET', KEYS[1], 'pending', ARGV[2])
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[6])
local function carry_out(items, i)
  while i <= #items do
    local t, n = tonumber(items[i + 1]), tonumber(items[i + 2])
    local values, order = KEYS[3 + 2 * t], KEYS[4 + 2 * t]
    if items[i] == 'p' then
      redis.call('HSET', values, unpack(items, i + 3, i + 2 + 2 * n))
      local scored = {}
      for e = 1, n do
        scored[2 * e - 1] = '0'
        scored[2 * e] = items[i + 1 + 2 * e]
      end
      redis.call('ZADD', order, unpack(scored))
      i = i + 3 + 2 * n
    else
      redis.call('HDEL', values, unpack(items, i + 3, i + 2 + n))
      redis.call('ZREM', order, unpack(items, i + 3, i + 2 + n))
      i = i + 3 + n
    end
  end
end
carry_out(ARGV, 10 + lists)
for l = 1, lists do
  carry_out(redis.call('LRANGE', KEYS[first + l - 1], '0', '-1'), 1)
  redis.call('DEL', KEYS[first + l - 1])
end
redis.call('HSET', KEYS[1], 'version', ARGV[5], 'commit', ARGV[2])
redis.call('HDEL', KEYS[1], 'pending')
return 'done'";
    Script::new("commit", &[body])
});

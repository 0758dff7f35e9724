//! The memory budget of a session: one accountant for all of its tables, cursors and caches.
//!
//! | consumer | share of the budget | when it is used up |
//! |---|---|---|
//! | write buffers | a quarter | the largest one is flushed first |
//! | cursors and diffs | an eighth | they read page by page |
//! | filters and indexes | what they need | the page cache gives way, then the write buffers |
//! | page cache, one for the session | what is left | pages are evicted |
//!
//! **Write buffers.** A table holds a [`Grant`] from its first update on. A fork shares the grant
//! of its original until then, so the fork counts zero. A table asks for a grant when it begins a
//! memtable, and gets up to its fair part of the share, or half of what is free if that is more. If
//! too little is free, other tables lose what they hold beyond a fair part and do not use. If that
//! is not enough, the table with the largest write buffer is *asked* to flush: it does so with its
//! next update, and a store does so at once. A grant is three times the weight of a full memtable
//! ([`BUFFER_WEIGHTS`]).
//!
//! **Tables with a budget of their own** keep to that. Their filters and indexes are counted with
//! those of all runs, each once however many tables share it; the rest of their budget is set
//! aside.
//!
//! **Invariant.** The sum of all grants for write buffers is at most their share and
//! [`GRANT_BYTES_MIN`] for each table that is written, when a grant is made. Nothing fails for want
//! of memory: a table always gets that minimum.

use std::collections::BTreeMap;

use terrane_io::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use terrane_io::sync::{Arc, Mutex};

use crate::config::{BUFFER_WEIGHTS, MEMORY_BUDGET_MAX};
use crate::error::{Error, Result};
use crate::files::file_set::{FileSet, lock};
use crate::run::page_cache::CacheShare;
use crate::run::prefetch::ReadAhead;
use crate::stats::MemoryStats;

/// Smallest memory budget of a session, in bytes.
pub const SESSION_MEMORY_BUDGET_MIN: u64 = 1 << 20;

/// Divisor of the budget for write buffers.
const WRITE_SHARE: u64 = 4;

/// Divisor of the budget for write buffers that filters and indexes leave at least.
const WRITE_SHARE_MIN: u64 = 16;

/// Divisor of the budget for what cursors read ahead.
const READ_AHEAD_SHARE: u64 = 8;

/// Grant of a table that is written, at least: a memtable of 16 KiB.
pub(crate) const GRANT_BYTES_MIN: u64 = BUFFER_WEIGHTS * (16 << 10);

/// Parts of the budget by which the limit of the page cache changes.
const CACHE_STEPS: u64 = 256;

/// Refuses a session budget that is too small for tables whose own budgets come to `own_bytes`.
///
/// # Errors
/// [`Error::InvalidConfig`], with the minimum.
pub(crate) fn check_session_budget(budget: u64, own_bytes: u64) -> Result<()> {
    let least = SESSION_MEMORY_BUDGET_MIN.saturating_add(own_bytes);
    if (least..=MEMORY_BUDGET_MAX).contains(&budget) {
        return Ok(());
    }
    let purpose = match own_bytes {
        0 => "for a session".to_owned(),
        own => format!("for a session whose tables have budgets of {own} bytes of their own"),
    };
    let value = format!("bytes: {budget}");
    let allowed = format!("{least} to {MEMORY_BUDGET_MAX}, {purpose}");
    Err(Error::InvalidConfig { option: "memory_budget", value, allowed })
}

/// Bytes that one table holds, or a fork for it.
#[derive(Debug, Default)]
struct Account {
    /// Bytes granted for write buffers.
    granted: AtomicU64,
    /// Bytes of write buffers in use after the last batch.
    used: AtomicU64,
    /// The greater of both.
    held: AtomicU64,
    /// Whether the table is to flush its memtable.
    is_asked: AtomicBool,
    /// The table's own budget, and its bytes beside filters and indexes; 0 for none.
    own_budget: AtomicU64,
    own_bytes: AtomicU64,
}

#[derive(Debug, Default)]
struct Accounts {
    /// The number of the last grant; numbers begin with 1.
    last: u64,
    by_number: BTreeMap<u64, Arc<Account>>,
}

impl Accounts {
    /// All accounts but `of`, with their numbers.
    fn others<'a>(&'a self, of: Option<&'a Account>) -> impl Iterator<Item = (u64, &'a Account)> {
        let all = self.by_number.iter().map(|(&number, account)| (number, &**account));
        all.filter(move |(_, account)| !of.is_some_and(|of| std::ptr::eq(of, *account)))
    }

    /// Part of a share for each of the tables that are written, `of` among them.
    fn fair_part(&self, share: u64, of: Option<&Account>) -> u64 {
        let writers = self.others(of).filter(|(_, account)| read(&account.held) > 0).count();
        let writers = writers as u64 + u64::from(of.is_some());
        (share / writers.max(1)).max(GRANT_BYTES_MIN)
    }
}

/// The memory budget of a session, and who holds how much of it.
#[derive(Debug)]
pub(crate) struct SessionMemory {
    files: Arc<FileSet>,
    budget: u64,
    read_ahead: Arc<ReadAhead>,
    /// The session's own share of the cache, which has the limit.
    cache: CacheShare,
    accounts: Mutex<Accounts>,
    /// Sums over all accounts.
    used: AtomicU64,
    held: AtomicU64,
    own_bytes: AtomicU64,
    /// Steps of the budget that were fixed when the cache got its limit.
    settled: AtomicU64,
    /// The grant whose table was asked to flush last; 0 for none.
    asked: AtomicU64,
    peak: AtomicU64,
}

/// Adds what a number has changed by to a sum.
fn replace(sum: &AtomicU64, number: &AtomicU64, value: u64) {
    let before = number.swap(value, Ordering::Relaxed);
    // Wraps if the number falls, and so subtracts.
    sum.fetch_add(value.wrapping_sub(before), Ordering::Relaxed);
}

fn read(number: &AtomicU64) -> u64 {
    number.load(Ordering::Relaxed)
}

impl SessionMemory {
    /// A budget that was [checked](check_session_budget).
    pub(crate) fn new(files: &Arc<FileSet>, budget: u64) -> Arc<Self> {
        debug_assert!(SESSION_MEMORY_BUDGET_MIN <= budget);
        let memory = Self {
            files: Arc::clone(files),
            budget,
            read_ahead: ReadAhead::new(budget / READ_AHEAD_SHARE),
            cache: CacheShare::new(budget),
            accounts: Mutex::default(),
            used: AtomicU64::new(0),
            held: AtomicU64::new(0),
            own_bytes: AtomicU64::new(0),
            settled: AtomicU64::new(u64::MAX),
            asked: AtomicU64::new(0),
            peak: AtomicU64::new(0),
        };
        memory.settle();
        Arc::new(memory)
    }

    /// Allowance of all cursors.
    pub(crate) fn read_ahead(&self) -> &Arc<ReadAhead> {
        &self.read_ahead
    }

    /// A share of the page cache, for a table without a budget of its own.
    pub(crate) fn cache_share(&self) -> CacheShare {
        self.cache.share_unlimited()
    }

    /// Bytes that nothing can be taken back of: filters, indexes, and what tables with a budget of
    /// their own have beside them.
    fn fixed_bytes(&self) -> u64 {
        let sums = self.files.sums();
        let runs = read(&sums.filter_bytes) + read(&sums.index_bytes);
        runs + read(&sums.unfinished_bytes) + read(&self.own_bytes)
    }

    /// Bytes for all write buffers together.
    fn write_share(&self) -> u64 {
        let left = self.budget.saturating_sub(self.read_ahead.bytes_max() + self.fixed_bytes());
        left.clamp(self.budget / WRITE_SHARE_MIN, self.budget / WRITE_SHARE)
    }

    /// Sum over all consumers.
    fn held_bytes(&self) -> u64 {
        self.fixed_bytes() + read(&self.held) + self.cache.bytes() + self.read_ahead.used()
    }

    /// Grants an account so many bytes for write buffers.
    fn set_granted(&self, account: &Account, bytes: u64) {
        account.granted.store(bytes, Ordering::Relaxed);
        self.count_held(account);
    }

    fn count_held(&self, account: &Account) {
        let held = read(&account.granted).max(read(&account.used));
        replace(&self.held, &account.held, held);
    }

    /// Lets the page cache, and then the largest write buffer, give way to filters and indexes that
    /// have grown. Cost: no I/O; a few additions if nothing has changed.
    pub(crate) fn settle(&self) {
        let steps = self.fixed_bytes().div_ceil(self.budget / CACHE_STEPS);
        if self.settled.swap(steps, Ordering::Relaxed) != steps {
            let accounts = lock(&self.accounts);
            // Read again under the lock, so that the last limit is that of the last settlement.
            let fixed = read(&self.settled).saturating_mul(self.budget / CACHE_STEPS);
            let shares = self.budget / WRITE_SHARE + self.read_ahead.bytes_max();
            self.cache.set(self.budget.saturating_sub(shares.saturating_add(fixed)), Vec::new());
            drop(accounts);
        }

        let share = self.write_share();
        if read(&self.held) > share {
            let accounts = lock(&self.accounts);
            let fair = accounts.fair_part(share, None);
            self.ask_largest(&accounts, None, fair);
        }
        self.peak.fetch_max(self.held_bytes(), Ordering::Relaxed);
    }

    /// Grants a table up to `wanted` bytes for its write buffers, in place of what it had.
    fn renew(&self, account: &Account, wanted: u64) -> u64 {
        let accounts = lock(&self.accounts);
        let share = self.write_share();
        let fair = accounts.fair_part(share, Some(account));
        let aim = wanted.min(fair);

        account.is_asked.store(false, Ordering::Relaxed);
        let free = |memory: &Self| {
            let others = read(&memory.held).saturating_sub(read(&account.held));
            share.saturating_sub(others)
        };
        if free(self) < aim {
            self.take_back_unused(&accounts, account, fair, aim - free(self));
        }
        let free = free(self);

        let granted = wanted.min((free / 2).max(aim.min(free)).max(GRANT_BYTES_MIN));
        self.set_granted(account, granted);
        if granted < aim {
            self.ask_largest(&accounts, Some(account), fair);
        }

        debug_assert!(granted <= wanted, "nobody gets more than is wanted");
        debug_assert!(granted <= free.max(GRANT_BYTES_MIN), "nobody gets more than is free");
        granted
    }

    /// Takes back up to `needed` bytes that others than `of` hold beyond a fair part and do not
    /// use, largest parts first.
    fn take_back_unused(&self, accounts: &Accounts, of: &Account, fair: u64, needed: u64) {
        let unused = |account: &Account| {
            read(&account.granted).saturating_sub(read(&account.used).max(fair))
        };
        let others = accounts.others(Some(of)).map(|(_, account)| account);
        let mut others: Vec<&Account> = others.filter(|account| unused(account) > 0).collect();
        others.sort_by_key(|account| std::cmp::Reverse(unused(account)));

        let mut needed = needed;
        for account in others {
            let taken = unused(account).min(needed);
            self.set_granted(account, read(&account.granted) - taken);
            needed -= taken;
            if needed == 0 {
                break;
            }
        }
    }

    /// Asks the table with the largest write buffer above a fair part to flush it.
    fn ask_largest(&self, accounts: &Accounts, except: Option<&Account>, fair: u64) {
        let others = accounts.others(except);
        let large = others.filter(|(_, account)| read(&account.used) > fair);
        if let Some((number, account)) = large.max_by_key(|(_, account)| read(&account.used)) {
            account.is_asked.store(true, Ordering::Relaxed);
            self.asked.store(number, Ordering::Relaxed);
        }
    }

    /// The number of the grant whose table was asked to flush last, unless this was asked before.
    pub(crate) fn take_asked(&self) -> Option<u64> {
        if read(&self.asked) == 0 {
            return None;
        }
        Some(self.asked.swap(0, Ordering::Relaxed)).filter(|&number| number > 0)
    }

    /// Refuses a table whose own budget the session has no room for; `had` is the one that it takes
    /// the place of.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`].
    pub(crate) fn check_own_budget(&self, budget: u64, had: u64) -> Result<()> {
        let accounts = lock(&self.accounts);
        let taken: u64 = accounts.by_number.values().map(|account| read(&account.own_budget)).sum();
        let taken = taken.saturating_sub(had).saturating_add(SESSION_MEMORY_BUDGET_MIN);
        let left = self.budget.saturating_sub(taken);
        if budget <= left {
            return Ok(());
        }
        let value = format!("bytes: {budget}");
        let allowed = format!("at most {left}, which is left of the budget of the session");
        Err(Error::InvalidConfig { option: "memory_budget", value, allowed })
    }

    /// Bytes of all consumers at this moment.
    pub(crate) fn stats(&self) -> MemoryStats {
        self.settle();
        let sums = self.files.sums();
        MemoryStats {
            budget_bytes: self.budget,
            write_buffer_bytes: read(&self.held),
            write_buffer_used_bytes: read(&self.used),
            filter_bytes: read(&sums.filter_bytes),
            index_bytes: read(&sums.index_bytes),
            unfinished_bytes: read(&sums.unfinished_bytes),
            cache_bytes: self.cache.bytes(),
            cursor_bytes: self.read_ahead.used(),
            own_budget_bytes: read(&self.own_bytes),
            peak_bytes: read(&self.peak),
        }
    }
}

/// Bytes of a session's budget that a table holds; given back on drop.
#[derive(Debug)]
pub(crate) struct Grant {
    memory: Arc<SessionMemory>,
    number: u64,
    account: Arc<Account>,
}

impl Grant {
    /// A grant of nothing.
    pub(crate) fn new(memory: &Arc<SessionMemory>) -> Self {
        let account = Arc::<Account>::default();
        let mut accounts = lock(&memory.accounts);
        accounts.last += 1;
        let number = accounts.last;
        accounts.by_number.insert(number, Arc::clone(&account));
        Self { memory: Arc::clone(memory), number, account }
    }

    /// The number of the grant in its session.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Asks for a memtable whose full weight is up to `wanted`; returns the weight that is granted.
    pub(crate) fn renew(&self, wanted: u64) -> u64 {
        let bytes = self.memory.renew(&self.account, wanted.saturating_mul(BUFFER_WEIGHTS));
        self.memory.settle();
        bytes / BUFFER_WEIGHTS
    }

    /// Lowers the grant to what a memtable of this weight takes.
    pub(crate) fn keep(&self, weight: u64) {
        let accounts = lock(&self.memory.accounts);
        let bytes = read(&self.account.granted).min(weight.saturating_mul(BUFFER_WEIGHTS));
        self.memory.set_granted(&self.account, bytes);
        drop(accounts);
    }

    /// Whether a memtable that is charged so many bytes is to be flushed.
    pub(crate) fn is_used_up(&self, charged_bytes: u64) -> bool {
        self.account.is_asked.load(Ordering::Relaxed)
            || charged_bytes >= read(&self.account.granted) / BUFFER_WEIGHTS
    }

    /// Whether the write buffers in use are larger than what is granted.
    pub(crate) fn is_exceeded(&self) -> bool {
        read(&self.account.granted) < read(&self.account.used)
    }

    /// Notes the memory of the memtable and of the one that is being flushed.
    pub(crate) fn note_used(&self, bytes: u64) {
        replace(&self.memory.used, &self.account.used, bytes);
        self.memory.count_held(&self.account);
        self.memory.settle();
    }

    /// The table's own budget; 0 for none.
    pub(crate) fn own_budget(&self) -> u64 {
        read(&self.account.own_budget)
    }

    /// Notes the table's own budget, and its bytes beside filters and indexes.
    pub(crate) fn note_own(&self, budget: u64, bytes: u64) {
        self.account.own_budget.store(budget, Ordering::Relaxed);
        replace(&self.memory.own_bytes, &self.account.own_bytes, bytes);
        self.memory.settle();
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        let mut accounts = lock(&self.memory.accounts);
        accounts.by_number.remove(&self.number);
        replace(&self.memory.used, &self.account.used, 0);
        self.memory.set_granted(&self.account, 0);
        replace(&self.memory.own_bytes, &self.account.own_bytes, 0);
    }
}

#[cfg(test)]
mod tests {
    //! Goal: the sum of grants keeps to the share whatever tables ask for and use, all of it comes
    //! back, and no table starves. Method: grants asked for at random, with their sums counted
    //! anew after each call; then tables that are busy or idle.

    use std::path::Path;

    use terrane_io::{Disk, SimDisk};
    use terrane_testkit::draw::Draw;
    use terrane_testkit::seeds::for_each_seed;
    use terrane_testkit::{ChaCha8Rng, SeedableRng};

    use super::*;
    use crate::session::inner::{OpenSettings, SessionInner};

    const BUDGET: u64 = 16 << 20;
    const SHARE: u64 = BUDGET / WRITE_SHARE;

    fn session() -> Arc<SessionInner> {
        let disk: Arc<dyn Disk> = SimDisk::new(1);
        disk.create_dir(Path::new("/s")).unwrap();
        let settings = OpenSettings { memory_budget: Some(BUDGET), ..OpenSettings::new(1, 4) };
        SessionInner::open(&disk, Path::new("/s"), settings).unwrap()
    }

    fn granted(grants: &[Grant]) -> u64 {
        grants.iter().map(|grant| read(&grant.account.granted)).sum()
    }

    #[test]
    fn the_sum_of_grants_keeps_to_the_share_and_all_of_it_comes_back() {
        for_each_seed("grants", 20, |_, seed| {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let session = session();
            let memory = session.memory().unwrap();
            let mut grants: Vec<Grant> = Vec::new();
            for _ in 0..400 {
                match rng.below(8) {
                    0 | 1 => grants.push(Grant::new(memory)),
                    2 if !grants.is_empty() => drop(grants.swap_remove(rng.index(grants.len()))),
                    3 | 4 if !grants.is_empty() => {
                        let wanted = *rng.pick(&[1, 10_000, 300_000, 4 << 20, u64::MAX]);
                        let grant = &grants[rng.index(grants.len())];
                        let weight = grant.renew(wanted);
                        assert!(weight >= wanted.min(GRANT_BYTES_MIN / BUFFER_WEIGHTS));
                        assert!(weight <= wanted, "{weight} of {wanted}");
                        if rng.chance(1, 2) {
                            grant.keep(weight / 2);
                        }
                    }
                    5 | 6 if !grants.is_empty() => {
                        let grant = &grants[rng.index(grants.len())];
                        let most = read(&grant.account.granted);
                        grant.note_used(rng.below(most + 1));
                    }
                    _ => {}
                }

                let least = GRANT_BYTES_MIN * grants.len() as u64;
                assert!(granted(&grants) <= SHARE + least, "{}", granted(&grants));
                let held = grants
                    .iter()
                    .map(|grant| read(&grant.account.granted).max(read(&grant.account.used)));
                assert_eq!(read(&memory.held), held.sum::<u64>());
                assert!(memory.held_bytes() <= read(&memory.peak).max(SHARE + least));
            }

            drop(grants);
            assert_eq!((read(&memory.held), read(&memory.used)), (0, 0));
            assert!(lock(&memory.accounts).by_number.is_empty());
        });
    }

    #[test]
    fn busy_tables_come_to_equal_parts_and_one_alone_gets_all_that_it_wants() {
        let session = session();
        let memory = session.memory().unwrap();
        let alone = Grant::new(memory);
        assert_eq!(alone.renew(SHARE / 2 / BUFFER_WEIGHTS), SHARE / 2 / BUFFER_WEIGHTS);

        let mut grants = vec![alone];
        grants.extend((0..9).map(|_| Grant::new(memory)));
        let mut parts = Vec::new();
        for _ in 0..5 {
            // All of it is used, and then flushed.
            parts = grants.iter().map(|grant| grant.renew(u64::MAX)).collect();
            for grant in &grants {
                grant.note_used(read(&grant.account.granted));
            }
        }
        let fair = SHARE / BUFFER_WEIGHTS / 10;
        assert!(parts.iter().all(|&part| (fair / 2..=fair * 2).contains(&part)), "{parts:?}");
    }

    #[test]
    fn what_idle_tables_do_not_use_is_taken_back_and_the_largest_is_asked_to_flush() {
        let session = session();
        let memory = session.memory().unwrap();
        let [idle, full, new] = [(); 3].map(|()| Grant::new(memory));
        idle.renew(u64::MAX);
        full.renew(u64::MAX);
        idle.note_used(1_000);
        full.note_used(read(&full.account.granted));
        assert_eq!((memory.take_asked(), full.is_used_up(0)), (None, false));

        // The idle table keeps a fair part, the full one all that it uses, until it is flushed.
        let fair = SHARE / 3;
        assert_eq!(new.renew(u64::MAX), (SHARE / 2 - fair) / BUFFER_WEIGHTS);
        assert_eq!(read(&idle.account.granted), fair);
        assert!(!idle.is_used_up(1_000) && full.is_used_up(0));
        assert_eq!(memory.take_asked(), Some(full.number()));

        // Where all is used, the largest one has to go.
        full.renew(u64::MAX);
        assert!(!full.is_used_up(0), "it was flushed");
        for grant in [&idle, &full, &new] {
            grant.note_used(read(&grant.account.granted));
        }
        new.note_used(fair + fair / 2);
        let last = Grant::new(memory);
        assert!(last.renew(u64::MAX) >= GRANT_BYTES_MIN / BUFFER_WEIGHTS);
        assert_eq!(memory.take_asked(), Some(new.number()));
        assert!(new.is_used_up(0) && !idle.is_used_up(0) && !full.is_used_up(0));
        assert_eq!(memory.take_asked(), None, "it is said once");
    }
}

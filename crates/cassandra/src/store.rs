//! A store that is open: what this process knows of its head, and the order of its steps.
//!
//! Lock order: the turn of the writer, then the state. No request is sent under the lock of the
//! state.
//!
//! Invariants:
//! - Only the holder of the turn changes the head.
//! - The collector removes what commits up to `published.pruned` replaced and nothing later, so a
//!   reader that finds a head with `pruned` no later than its commit has read whole versions.
//! - `pruned` passes no snapshot of this process, and no commit younger than the retention.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join;
use terrane_kv::overlay::changes::{Changes, Known};
use terrane_kv::overlay::failure::closed;
use terrane_kv::overlay::names::IndexNames;
use terrane_kv::turn::Turn;
use terrane_kv::{Durability, Guarantee, PowerLoss, Receipt, Result};

use crate::cluster::{Cluster, SyncMode};
use crate::collect::collect;
use crate::commit::{Listed, plan};
use crate::error::{NAME, busy, unsupported};
use crate::head::{Head, Work};
use crate::heads::{self, Outcome, Publication, Published};
use crate::lease::Lease;
use crate::options::Options;
use crate::runtime::Runtime;

/// Works of the collector in each commit: more than commits make, so that it catches up.
const WORKS_PER_COMMIT: usize = 2;

/// Knowledge of this process about its store.
#[derive(Debug)]
struct State {
    head: Arc<Head>,
    /// Progress of the collector that the cluster has confirmed.
    published: Published,
    /// A commit whose outcome is open.
    question: Option<Publication>,
    /// Rows of a failed commit are left under the next number, so another epoch must be begun.
    must_raise: bool,
    is_fenced: bool,
    /// How many snapshots of each commit live.
    snapshots: BTreeMap<i64, usize>,
    /// Since when commits stand that are not pruned yet.
    commits: VecDeque<(i64, Instant)>,
    /// When this opening began its last epoch: what older writers left is younger than that.
    raised: Instant,
    /// By table.
    listed: Vec<Listed>,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) options: Options,
    pub(crate) indexes: Arc<IndexNames>,
    /// Names of the tables in partition keys, by number.
    pub(crate) tables: Vec<Arc<str>>,
    runtime: Runtime,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) guarantee: Guarantee,
    /// How long versions are kept, as the store has it.
    pub(crate) retention: Duration,
    pub(crate) turn: Turn,
    state: Mutex<State>,
    /// The right to write; `None` for a reading process.
    lease: Option<Arc<Lease>>,
    is_closed: AtomicBool,
    pub(crate) transactions: AtomicU64,
}

/// A commit that is read, and for how long that needs no question.
#[derive(Debug)]
pub(crate) struct ReadPoint {
    pub(crate) head: Arc<Head>,
    /// Until when a snapshot of another process's store is whole without asking; `None` for a
    /// snapshot that this process itself protects.
    pub(crate) whole_until: Option<Instant>,
}

/// A name for this opening that no other has: of random bits, and the process.
fn token() -> String {
    let random = || RandomState::new().build_hasher().finish();
    format!("process {} ({:016x}{:016x})", std::process::id(), random(), random())
}

/// Promise under the settings of the nodes.
fn guarantee_of(mode: SyncMode) -> Guarantee {
    let (durability, power_loss, text) = match mode {
        SyncMode::BeforeAnswer => (
            Durability::Each,
            PowerLoss::EveryCommit,
            "a commit is on a majority of the replicas, each of which synced its log before it answered: every commit \
             survives a loss of power of all nodes",
        ),
        SyncMode::Periodic => (
            Durability::Buffered,
            PowerLoss::NoPromise,
            "a commit is on a majority of the replicas, which sync their logs periodically: every commit survives the \
             loss of a minority of the replicas; a loss of power of a majority at once may tear the last commits",
        ),
        SyncMode::Unknown => (
            Durability::Buffered,
            PowerLoss::NoPromise,
            "a commit is on a majority of the replicas, which do not tell when they sync their logs: every commit \
             survives the loss of a minority of the replicas",
        ),
    };
    Guarantee { durability, survives_kill: true, power_loss, text: text.to_owned() }
}

impl Inner {
    /// Opens a store, or creates it unless the options ask for reading only.
    ///
    /// # Errors
    /// Those of [`Cassandra::open`](crate::Cassandra::open).
    pub(crate) fn open(options: Options) -> Result<Self> {
        options.check()?;
        let names: Vec<&str> = options.indexes.iter().map(String::as_str).collect();
        let indexes = Arc::new(IndexNames::new(NAME, &names)?);
        let runtime = Runtime::start()?;

        let connecting = options.clone();
        let cluster = runtime.wait("connect", async move {
            let cluster = Cluster::connect(&connecting, !connecting.read_only).await?;
            let mode = cluster.sync_mode().await;
            Ok((Arc::new(cluster), mode))
        });
        let (cluster, mode) = cluster?;
        let guarantee = guarantee_of(mode);
        let is_enough = match options.durability {
            Durability::None | Durability::Buffered => true,
            Durability::Each | Durability::Group => mode == SyncMode::BeforeAnswer,
        };
        if !is_enough {
            let option = format!("durability {}", options.durability.name());
            let why = "the nodes sync their logs periodically; set commitlog_sync to batch or group in \
                       cassandra.yaml, or take async";
            return Err(unsupported(option, why));
        }

        let opening = options.clone();
        let opening_cluster = cluster.clone();
        let opened = runtime.wait("open", async move { begin(&opening_cluster, &opening).await });
        let (found, lease) = opened?;
        if let Some(lease) = &lease {
            runtime.spawn(Lease::keep(Arc::downgrade(lease), cluster.clone()));
        }

        let now = Instant::now();
        // After an orderly end nobody reads what was replaced longer ago than the retention. After
        // another end a fenced process may, for as long as it trusts its lease.
        let age = if found.was_closed { found.age } else { Duration::ZERO };
        let since = now.checked_sub(age).unwrap_or(now);
        let tables = std::iter::once("main".to_owned())
            .chain(indexes.iter().map(|name| format!("index {name}")));
        let tables: Vec<Arc<str>> = tables.map(Arc::from).collect();
        let state = State {
            published: Published::of(&found.head),
            question: None,
            must_raise: false,
            is_fenced: false,
            snapshots: BTreeMap::new(),
            commits: VecDeque::from([(found.head.commit, since)]),
            raised: now,
            listed: vec![Listed::default(); tables.len()],
            head: Arc::new(found.head),
        };

        Ok(Self {
            options,
            indexes,
            tables,
            runtime,
            cluster,
            guarantee,
            retention: found.retention,
            turn: Turn::default(),
            state: Mutex::new(state),
            lease,
            is_closed: AtomicBool::new(false),
            transactions: AtomicU64::new(0),
        })
    }

    // Takes a poisoned lock too: no code under the lock can panic half way.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses a call after the close.
    ///
    /// # Errors
    /// [`Error::BackEnd`](terrane_kv::Error::BackEnd).
    pub(crate) fn check_open(&self, call: &'static str) -> Result<()> {
        if self.is_closed.load(Ordering::Acquire) { Err(closed(NAME, call)) } else { Ok(()) }
    }

    /// Runs a future on the thread of requests.
    ///
    /// # Errors
    /// Those of the future.
    pub(crate) fn wait<T: Send + 'static>(
        &self,
        call: &'static str,
        future: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.runtime.wait(call, future)
    }

    fn is_lease_trusted(&self) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.is_trusted())
    }

    /// Number of the last commit, if no other process can have made one since.
    pub(crate) fn last_commit(&self) -> Option<u64> {
        let state = self.state();
        let is_certain = state.question.is_none() && !state.is_fenced && self.is_lease_trusted();
        is_certain.then_some(state.head.commit as u64)
    }

    /// Bytes of the rows of the store in one replica.
    ///
    /// # Errors
    /// Those of the cluster.
    pub(crate) fn bytes(&self) -> Result<u64> {
        self.check_open("disk_bytes")?;
        let head = if self.lease.is_some() { self.state().head.clone() } else { self.read_head()? };
        Ok(head.bytes as u64)
    }

    /// Name and head of the store, for its removal. The caller has the turn.
    ///
    /// # Errors
    /// [`Error::ReadOnly`](terrane_kv::Error::ReadOnly).
    pub(crate) fn head_to_remove(&self) -> Result<(String, Head)> {
        if self.lease.is_none() {
            return Err(terrane_kv::Error::ReadOnly { back_end: NAME });
        }
        Ok((self.options.store.clone(), Head::clone(&self.state().head)))
    }

    /// Reads the head, and takes it over unless a later one is known.
    fn read_head(&self) -> Result<Arc<Head>> {
        let cluster = self.cluster.clone();
        let store = self.options.store.clone();
        let reading = async move { heads::read_existing(&cluster, &store, false).await };
        let found = self.wait("read the head", reading)?;

        let mut state = self.state();
        if self.lease.is_some() {
            return Ok(Arc::new(found.head));
        }
        // Replicas that hang behind a majority may answer in another order.
        if (found.head.commit, found.head.epoch) >= (state.head.commit, state.head.epoch) {
            state.head = Arc::new(found.head);
        }
        Ok(state.head.clone())
    }

    /// Begins a snapshot of the last commit.
    ///
    /// # Errors
    /// [`Error::Locked`](terrane_kv::Error::Locked) if another process has taken the store over;
    /// [`Error::Unknown`](terrane_kv::Error::Unknown) while the outcome of a commit is open; those
    /// of the cluster.
    pub(crate) fn begin_snapshot(&self) -> Result<ReadPoint> {
        self.check_open("reader")?;
        if self.lease.is_none() {
            let before = Instant::now();
            let head = self.read_head()?;
            return Ok(ReadPoint { head, whole_until: Some(before + self.retention * 9 / 10) });
        }

        // Nobody else asks while this thread has the writer, or waits for a writer that asks.
        if self.state().question.is_some() {
            match self.turn.take(NAME) {
                Ok(_turn) => self.answer_question()?,
                Err(_) => return Err(busy("the outcome of the last commit is open")),
            }
        }

        if !self.is_lease_trusted() {
            self.check_epoch()?;
        }
        let mut state = self.state();
        if state.is_fenced {
            return Err(heads::fenced(&self.options.store, None));
        }
        let head = state.head.clone();
        *state.snapshots.entry(head.commit).or_default() += 1;
        Ok(ReadPoint { head, whole_until: None })
    }

    /// Ends a snapshot.
    pub(crate) fn end_snapshot(&self, point: &ReadPoint) {
        if point.whole_until.is_some() {
            return;
        }
        let mut state = self.state();
        if let Some(count) = state.snapshots.get_mut(&point.head.commit) {
            *count -= 1;
            if *count == 0 {
                state.snapshots.remove(&point.head.commit);
            }
        }
    }

    /// Asks whether this opening still has the epoch.
    fn check_epoch(&self) -> Result<()> {
        let epoch = self.state().head.epoch;
        let found = self.read_head()?;
        let mut state = self.state();
        // The epoch may have been raised by this process meanwhile.
        if found.epoch > epoch.max(state.head.epoch) {
            state.is_fenced = true;
            return Err(heads::fenced(&self.options.store, None));
        }
        Ok(())
    }

    /// Checks, after something was read, that the snapshot was whole until then. Cost: nothing, or
    /// a read of the head if the lease or the retention has run out.
    ///
    /// # Errors
    /// [`Error::Busy`](terrane_kv::Error::Busy) if versions of the snapshot have been removed;
    /// those of the cluster.
    pub(crate) fn check_whole(&self, point: &ReadPoint) -> Result<()> {
        let is_certain = match point.whole_until {
            Some(until) => Instant::now() < until,
            None => self.is_lease_trusted(),
        };
        if is_certain {
            return Ok(());
        }

        let found = self.read_head()?;
        let is_protected = point.whole_until.is_none() && found.epoch <= self.state().head.epoch;
        if is_protected || found.pruned <= point.head.commit {
            return Ok(());
        }
        let commit = point.head.commit;
        Err(busy(format!("the snapshot of commit {commit} is too old; take another one")))
    }

    /// The head for a writer: of this opening's epoch, with no question open.
    ///
    /// # Errors
    /// [`Error::Locked`](terrane_kv::Error::Locked),
    /// [`Error::Unknown`](terrane_kv::Error::Unknown), those of the cluster.
    pub(crate) fn prepare_to_write(&self) -> Result<()> {
        self.answer_question()?;
        let (head, must_raise) = {
            let state = self.state();
            if state.is_fenced {
                return Err(heads::fenced(&self.options.store, None));
            }
            (state.head.clone(), state.must_raise)
        };
        if !must_raise {
            return Ok(());
        }

        let cluster = self.cluster.clone();
        let store = self.options.store.clone();
        let token = self.token().to_owned();
        let patience = self.options.patience;
        let raised = self.wait("raise the epoch", async move {
            heads::raise(&cluster, &store, &token, &head, false, patience).await
        });

        let mut state = self.state();
        match raised {
            Ok(head) => {
                state.take_raised(head);
                Ok(())
            }
            Err(error) => {
                state.is_fenced |= matches!(error, terrane_kv::Error::Locked { .. });
                Err(error)
            }
        }
    }

    fn token(&self) -> &str {
        self.lease.as_ref().map_or("", |lease| &lease.token)
    }

    /// Finds out what became of a commit whose outcome is open. The caller has the turn.
    fn answer_question(&self) -> Result<()> {
        let Some(question) = self.state().question.clone() else { return Ok(()) };
        let cluster = self.cluster.clone();
        let store = self.options.store.clone();
        let token = self.token().to_owned();
        let patience = self.options.patience;
        let asked = question.clone();
        let outcome = self.wait("ask for the outcome", async move {
            asked.outcome(&cluster, &store, &token, patience).await
        });
        self.settle_outcome(question, outcome?).map(drop).or_else(|error| match error {
            // The commit has failed, and its caller was told that its outcome was unknown.
            terrane_kv::Error::BackEnd { .. } => Ok(()),
            error => Err(error),
        })
    }

    /// Takes an outcome over.
    ///
    /// # Errors
    /// [`Error::Locked`](terrane_kv::Error::Locked) if this opening is fenced and the commit has
    /// not taken place; [`Error::BackEnd`](terrane_kv::Error::BackEnd) if it has not for another
    /// reason.
    fn settle_outcome(&self, publication: Publication, outcome: Outcome) -> Result<Receipt> {
        let mut state = self.state();
        state.question = None;
        let receipt = Receipt(publication.after.commit as u64);
        match outcome {
            Outcome::Done => {
                state.take_commit(publication.after);
                self.transactions.fetch_add(1, Ordering::Relaxed);
                Ok(receipt)
            }
            Outcome::DoneAndFenced => {
                state.take_commit(publication.after);
                state.is_fenced = true;
                self.transactions.fetch_add(1, Ordering::Relaxed);
                Ok(receipt)
            }
            Outcome::NotDone(head) => {
                state.take_raised(head);
                let why = "the conditional write did not apply; the commit has not taken place";
                Err(crate::error::failed("commit", why))
            }
            Outcome::Fenced(writer) => {
                state.is_fenced = true;
                Err(heads::fenced(&self.options.store, writer.as_deref()))
            }
        }
    }

    /// Commits changes. The caller has the turn.
    ///
    /// # Errors
    /// [`Error::Locked`](terrane_kv::Error::Locked) if another process has taken the store over;
    /// [`Error::Unknown`](terrane_kv::Error::Unknown) if the cluster does not tell the outcome;
    /// those of the cluster, and then the commit has not taken place.
    pub(crate) fn commit(&self, changes: &[Changes], known: &[Known]) -> Result<Receipt> {
        self.check_open("commit")?;
        self.prepare_to_write()?;

        let (head, published, works, pruned, listed) = {
            let state = self.state();
            let works = state.works(self.retention, self.grace(), WORKS_PER_COMMIT);
            let pruned = state.prunable(self.retention);
            (state.head.clone(), state.published, works, pruned, state.listed.clone())
        };
        debug_assert!(published.pruned <= head.pruned);

        let names = self.tables.clone();
        let changes = changes.to_vec();
        let known = known.to_vec();
        let cluster = self.cluster.clone();
        let before = head.clone();
        let staged = self.wait("commit", async move {
            let mut plan = plan(&cluster, &before, &names, changes, known, &listed).await?;
            let is_empty = plan.is_empty();
            // The collector works while the rows travel.
            let collecting = async {
                let mut done = Vec::new();
                for work in works {
                    done.push((work, collect(&cluster, before.id, work).await?));
                }
                Ok(done)
            };
            let (written, collected) = join(plan.write(&cluster, before.id), collecting).await;
            Ok((plan, is_empty, written, collected))
        });
        let (plan, is_empty, written, collected) = staged?;

        let publication = {
            let mut state = self.state();
            if let Ok(collected) = &collected {
                state.take_collected(collected);
            }
            if let Err(error) = written.and(collected.map(drop)) {
                // Rows may be there under the number, so nobody may use it again.
                state.must_raise |= !is_empty;
                return Err(error);
            }
            for &(table, bucket) in &plan.buckets {
                state.listed[table].insert(bucket);
            }

            let before = Head::clone(&state.head);
            let freed = head.bytes - before.bytes;
            let after = Head {
                commit: plan.commit,
                counts: plan.counts,
                bytes: (plan.bytes - freed).max(0),
                pruned: pruned.max(before.pruned),
                ..before.clone()
            };
            debug_assert!(before.commit < after.commit);
            Publication { before, after }
        };

        let cluster = self.cluster.clone();
        let store = self.options.store.clone();
        let token = self.token().to_owned();
        let patience = self.options.patience;
        let sent = publication.clone();
        let outcome =
            self.wait("commit", async move { sent.send(&cluster, &store, &token, patience).await });
        match outcome {
            Ok(outcome) => self.settle_outcome(publication, outcome),
            Err(error) => {
                let mut state = self.state();
                match error {
                    terrane_kv::Error::Unknown { .. } => state.question = Some(publication),
                    // The cluster refused the request itself.
                    _ => state.must_raise = true,
                }
                Err(error)
            }
        }
    }

    /// How long after the end of an epoch requests of its writer may still arrive.
    fn grace(&self) -> Duration {
        self.retention + 2 * self.options.request_timeout
    }

    /// Removes all that may be removed now. The caller has the turn.
    ///
    /// # Errors
    /// Those of the cluster; nothing that a snapshot sees is lost.
    pub(crate) fn collect_all(&self) -> Result<()> {
        self.prepare_to_write()?;
        loop {
            // First what is to be removed is told, then it is removed.
            {
                let mut state = self.state();
                let pruned = state.prunable(self.retention);
                if pruned > state.head.pruned {
                    let mut head = Head::clone(&state.head);
                    head.pruned = pruned;
                    state.head = Arc::new(head);
                }
            }
            self.publish(false)?;

            let (id, works) = {
                let state = self.state();
                (state.head.id, state.works(self.retention, self.grace(), 64))
            };
            if works.is_empty() {
                return Ok(());
            }
            let cluster = self.cluster.clone();
            let done = self.wait("compact", async move {
                let mut done = Vec::new();
                for work in works {
                    done.push((work, collect(&cluster, id, work).await?));
                }
                Ok(done)
            });
            self.state().take_collected(&done?);
        }
    }

    /// Publishes the progress of the collector, if there is any.
    fn publish(&self, is_closed: bool) -> Result<()> {
        let (head, published) = {
            let state = self.state();
            (state.head.clone(), state.published)
        };
        if Published::of(&head) == published && !is_closed {
            return Ok(());
        }

        let cluster = self.cluster.clone();
        let store = self.options.store.clone();
        let sent = head.clone();
        let tidied = self.wait("publish the collection", async move {
            heads::tidy(&cluster, &store, &sent, published, is_closed).await
        });
        let mut state = self.state();
        match tidied {
            Ok(()) => {
                state.published = Published::of(&head);
                Ok(())
            }
            Err(error) => {
                state.is_fenced |= matches!(error, terrane_kv::Error::Locked { .. });
                Err(error)
            }
        }
    }

    /// Closes the store, and gives up the right to write.
    ///
    /// # Errors
    /// Those of the cluster. The store is closed in any case; the right to write then ends with its
    /// lease.
    pub(crate) fn close(&self) -> Result<()> {
        if self.is_closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let Some(lease) = self.lease.clone() else { return Ok(()) };
        let is_clean = {
            let state = self.state();
            state.question.is_none() && !state.must_raise && !state.is_fenced
        };
        // The next opening need not look for what this one left.
        let told = if is_clean { self.publish(true) } else { Ok(()) };

        let cluster = self.cluster.clone();
        let released = self.wait("release the lease", async move { lease.release(&cluster).await });
        told.and(released)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // An error leaves the lease to run out.
        let _ = self.close();
    }
}

impl State {
    /// Takes over a commit that took place.
    fn take_commit(&mut self, head: Head) {
        debug_assert!(self.head.commit < head.commit);
        self.commits.push_back((head.commit, Instant::now()));
        self.published = Published::of(&head);
        while self.commits.front().is_some_and(|&(commit, _)| commit <= self.published.pruned) {
            self.commits.pop_front();
        }
        self.head = Arc::new(head);
    }

    /// Takes over the head of a new epoch of this opening.
    fn take_raised(&mut self, head: Head) {
        self.must_raise = false;
        self.raised = Instant::now();
        self.published = Published::of(&head);
        self.head = Arc::new(head);
    }

    /// Takes over the work of the collector.
    fn take_collected(&mut self, done: &[(Work, i64)]) {
        let mut head = Head::clone(&self.head);
        for &(work, freed) in done {
            head.collect(work, freed);
        }
        self.head = Arc::new(head);
    }

    /// The latest commit whose predecessors nobody needs: none older than the snapshots of this
    /// process, and none that a snapshot of another process may be from.
    fn prunable(&self, retention: Duration) -> i64 {
        let oldest = self.snapshots.keys().next().copied().unwrap_or(i64::MAX);
        let is_old = |since: Instant| since.elapsed() >= retention;
        let old =
            self.commits.iter().take_while(|&&(commit, since)| commit <= oldest && is_old(since));
        old.last().map_or(self.head.pruned, |&(commit, _)| commit.max(self.head.pruned))
    }

    /// The next works of the collector that may be done now.
    fn works(&self, retention: Duration, grace: Duration, count: usize) -> Vec<Work> {
        debug_assert!(retention <= grace);
        let mut head = Head::clone(&self.head);
        let mut works = Vec::new();
        while works.len() < count
            && let Some(work) = head.work()
        {
            let may = match work {
                Work::Commit(commit) => commit <= self.published.pruned,
                // Requests of a dead writer may be under way for a while.
                Work::Gap(gap) => !gap.is_dirty || self.raised.elapsed() >= grace,
            };
            if !may {
                break;
            }
            head.collect(work, 0);
            works.push(work);
        }
        works
    }
}

/// A store as opening finds it.
struct Opened {
    head: Head,
    retention: Duration,
    was_closed: bool,
    age: Duration,
}

/// Takes the right to write, unless the options ask for reading only.
async fn begin(cluster: &Cluster, options: &Options) -> Result<(Opened, Option<Arc<Lease>>)> {
    let store = options.store.as_str();
    let found = if options.read_only {
        let found = heads::read(cluster, store, false).await?;
        let why = "does not exist; open it for writing once to make it";
        found.ok_or_else(|| unsupported(format!("store {store:?}"), why))?
    } else {
        let random = RandomState::new().build_hasher().finish();
        let datacenter = options.datacenter.as_deref();
        heads::read_or_create(cluster, store, random as i64, datacenter, options.retention).await?
    };

    if found.datacenter != options.datacenter {
        let shown = found.datacenter.as_deref().unwrap_or("none");
        let why = format!("the store was created with {shown}: all its users must name the same");
        return Err(unsupported("datacenter", why));
    }
    if options.lease > found.retention {
        let why = format!("is longer than the retention of the store, {:?}", found.retention);
        return Err(unsupported("lease", why));
    }

    let mut opened = Opened {
        retention: found.retention,
        was_closed: found.head.is_closed,
        age: found.age,
        head: found.head,
    };
    if options.read_only {
        return Ok((opened, None));
    }

    let lease = Lease::take(cluster, store.to_owned(), token(), options.lease, options.takes_over);
    let lease = lease.await?;
    // Read again: the last holder may have committed until its lease ended.
    let found = heads::read_existing(cluster, store, true).await?;
    let is_clean = found.head.is_closed;
    let raised =
        heads::raise(cluster, store, &lease.token, &found.head, is_clean, options.patience).await;
    match raised {
        Ok(head) => {
            opened = Opened { head, was_closed: is_clean, age: found.age, ..opened };
            Ok((opened, Some(Arc::new(lease))))
        }
        Err(error) => {
            // Best effort: the lease runs out by itself.
            let _ = lease.release(cluster).await;
            Err(error)
        }
    }
}

//! The right to write, which a process holds by a row with a time to live.
//!
//! The nodes count the time, so a client's clock plays no part. The holder trusts the lease for
//! less than that time, by its own monotonic clock, from before the request that renewed it. The
//! lease spares questions only: what keeps an older writer out is the epoch of the head.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use terrane_kv::Result;

use crate::cluster::{Applied, Cluster};
use crate::error::{error_of, locked};

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Lease {
    store: String,
    /// Name of this opening, which no other has.
    pub(crate) token: String,
    time: Duration,
    trusted_until: Mutex<Instant>,
    is_lost: AtomicBool,
    is_released: AtomicBool,
}

impl Lease {
    /// Takes the lease; with `seizes` also from a live holder.
    ///
    /// # Errors
    /// [`Error::Locked`](terrane_kv::Error::Locked), and those of the cluster.
    pub(crate) async fn take(
        cluster: &Cluster,
        store: String,
        token: String,
        time: Duration,
        seizes: bool,
    ) -> Result<Self> {
        let lease = Self {
            store,
            token,
            time,
            trusted_until: Mutex::new(Instant::now()),
            is_lost: AtomicBool::new(false),
            is_released: AtomicBool::new(false),
        };

        let before = Instant::now();
        let statements = &cluster.statements;
        let applied = if seizes {
            let values = (lease.seconds(), &lease.token, &lease.store, &lease.token);
            cluster.apply(&statements.lease_seize, values).await?
        } else {
            let values = (lease.seconds(), &lease.token, &lease.store);
            cluster.apply(&statements.lease_take, values).await?
        };

        match applied {
            Applied::Yes => {}
            Applied::No => return Err(lease.held_by(cluster).await?),
            Applied::Unknown(error) => {
                // A read at serial consistency finishes the write or rules it out for now; if it
                // applies later after all, it names this opening.
                if !lease.is_own(cluster).await? {
                    return Err(error_of("take the lease", *error));
                }
            }
        }
        lease.trust_from(before);
        Ok(lease)
    }

    /// The time to live.
    fn seconds(&self) -> i32 {
        self.time.as_secs().max(1) as i32
    }

    async fn holder(&self, cluster: &Cluster) -> Result<Option<String>> {
        let statement = &cluster.statements.lease_read;
        let rows = cluster.rows::<(Option<String>,)>("read the lease", statement, (&self.store,));
        Ok(rows.await?.pop().and_then(|(writer,)| writer))
    }

    async fn is_own(&self, cluster: &Cluster) -> Result<bool> {
        Ok(self.holder(cluster).await?.is_some_and(|holder| holder == self.token))
    }

    async fn held_by(&self, cluster: &Cluster) -> Result<terrane_kv::Error> {
        let holder = self.holder(cluster).await?.unwrap_or_else(|| "another process".to_owned());
        let (store, time) = (&self.store, self.time);
        Ok(locked(format!(
            "store {store} is written by {holder}; its right ends {time:?} after its death, or is taken with take-over"
        )))
    }

    /// The time from which a renewal counts: a fifth and a second less than the nodes give.
    fn trust_from(&self, before: Instant) {
        let trusted = (self.time * 4 / 5).saturating_sub(Duration::from_secs(1));
        *self.trusted_until.lock().unwrap_or_else(PoisonError::into_inner) = before + trusted;
    }

    /// Whether no other process can have begun to write without seizing the lease.
    pub(crate) fn is_trusted(&self) -> bool {
        let until = *self.trusted_until.lock().unwrap_or_else(PoisonError::into_inner);
        !self.is_lost.load(Ordering::Acquire)
            && !self.is_released.load(Ordering::Acquire)
            && Instant::now() < until
    }

    /// Renews the lease until it is released, lost, or dropped by its last user.
    pub(crate) async fn keep(lease: std::sync::Weak<Self>, cluster: Arc<Cluster>) {
        loop {
            let Some(pause) = lease.upgrade().map(|lease| lease.time / 3) else { return };
            tokio::time::sleep(pause).await;
            let Some(lease) = lease.upgrade() else { return };
            if lease.is_released.load(Ordering::Acquire) {
                return;
            }

            let before = Instant::now();
            let values = (lease.seconds(), &lease.token, &lease.store, &lease.token);
            match cluster.apply(&cluster.statements.lease_renew, values).await {
                Ok(Applied::Yes) => lease.trust_from(before),
                // It ran out while this process or the cluster stood still: free, or another's.
                Ok(Applied::No) => {
                    let values = (lease.seconds(), &lease.token, &lease.store);
                    match cluster.apply(&cluster.statements.lease_take, values).await {
                        Ok(Applied::Yes) => lease.trust_from(before),
                        Ok(Applied::No) => lease.is_lost.store(true, Ordering::Release),
                        Ok(Applied::Unknown(_)) | Err(_) => {}
                    }
                }
                // The next renewal finds out; meanwhile nobody trusts the lease for longer.
                Ok(Applied::Unknown(_)) | Err(_) => {}
            }
        }
    }

    /// Gives the lease up.
    ///
    /// # Errors
    /// Those of the cluster; the lease then runs out by itself.
    pub(crate) async fn release(&self, cluster: &Cluster) -> Result<()> {
        self.is_released.store(true, Ordering::Release);
        let values = (&self.store, &self.token);
        match cluster.apply(&cluster.statements.lease_release, values).await? {
            // Another process has it, or it has run out.
            Applied::Yes | Applied::No => Ok(()),
            Applied::Unknown(error) => Err(error_of("release the lease", *error)),
        }
    }
}

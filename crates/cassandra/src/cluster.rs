//! Connections to a cluster: opening them, and running statements until enough replicas answer.
//!
//! Invariant: the driver itself repeats nothing. Plain statements are repeated here, as they are;
//! a conditional write is sent once, and its caller finds out what became of it.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use scylla::client::execution_profile::ExecutionProfile;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::deserialize::row::DeserializeRow;
use scylla::errors::{ExecutionError, TranslationError};
use scylla::policies::address_translator::{AddressTranslator, UntranslatedPeer};
use scylla::policies::load_balancing::{
    DefaultPolicy, NodeIdentifier, SingleTargetLoadBalancingPolicy,
};
use scylla::policies::retry::FallthroughRetryPolicy;
use scylla::response::query_result::QueryResult;
use scylla::serialize::row::SerializeRow;
use scylla::statement::Statement;
use scylla::statement::prepared::PreparedStatement;
use terrane_kv::Result;

use crate::error::{corrupt, error_of, error_of_connect, is_transient, unsupported};
use crate::options::Options;
use crate::schema::{self, Levels, Statements, error_of_rows};
use crate::tls;

/// Pause before the first repetition of a request; it doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// Longest pause between two attempts.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// When nodes sync their commit logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SyncMode {
    /// Before they answer.
    BeforeAnswer,
    /// From time to time.
    Periodic,
    /// The nodes do not tell.
    Unknown,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Cluster {
    session: Session,
    pub(crate) statements: Statements,
    patience: Duration,
    /// Bytes of keys and values in requests and answers.
    pub(crate) bytes_written: AtomicU64,
    pub(crate) bytes_read: AtomicU64,
    /// Conditional writes that took effect.
    pub(crate) conditional: AtomicU64,
}

/// Outcome of a conditional write.
#[derive(Debug)]
pub(crate) enum Applied {
    Yes,
    No,
    /// No answer, or one that leaves it open.
    Unknown(Box<ExecutionError>),
}

/// Addresses of nodes as this client reaches them.
struct Translation(HashMap<SocketAddr, SocketAddr>);

#[async_trait::async_trait]
impl AddressTranslator for Translation {
    async fn translate_address(
        &self,
        peer: &UntranslatedPeer,
    ) -> std::result::Result<SocketAddr, TranslationError> {
        let told = peer.untranslated_address();
        Ok(self.0.get(&told).copied().unwrap_or(told))
    }
}

impl Cluster {
    /// Connects, and creates missing tables if `creates`.
    ///
    /// # Errors
    /// Those of the cluster.
    pub(crate) async fn connect(options: &Options, creates: bool) -> Result<Self> {
        let levels = Levels::of(options);
        let mut policy = DefaultPolicy::builder().token_aware(true);
        if let Some(datacenter) = &options.datacenter {
            policy = policy.prefer_datacenter(datacenter.clone());
        }
        let profile = ExecutionProfile::builder()
            .consistency(levels.plain)
            .serial_consistency(Some(levels.serial))
            .request_timeout(Some(options.request_timeout))
            .retry_policy(Arc::new(FallthroughRetryPolicy::new()))
            .load_balancing_policy(policy.build())
            .build();

        let tls = options.tls.as_ref().map(tls::config).transpose()?;
        let mut builder = SessionBuilder::new()
            .known_nodes(&options.contact_points)
            .connection_timeout(options.request_timeout)
            .fetch_schema_metadata(true)
            .keyspaces_to_fetch([options.keyspace.clone()])
            .tls_context(tls)
            .default_execution_profile_handle(profile.into_handle());
        if let Some((user, password)) = &options.user {
            builder = builder.user(user, password);
        }
        if !options.translation.is_empty() {
            builder =
                builder.address_translator(Arc::new(Translation(options.translation.clone())));
        }

        let session = builder.build().await.map_err(error_of_connect)?;
        if let Some(datacenter) = &options.datacenter {
            // Otherwise each request would wait for nodes that never come.
            let state = session.get_cluster_state();
            let mut nodes = state.get_nodes_info().iter();
            if !nodes.any(|node| node.datacenter.as_ref() == Some(datacenter)) {
                let why = "no node of the cluster is in it";
                return Err(unsupported(format!("datacenter {datacenter:?}"), why));
            }
        }
        if creates {
            schema::create(&session, options).await?;
        } else {
            schema::check(&session, options).await?;
        }

        let statements = Statements::prepare(&session, &options.keyspace, levels).await?;
        Ok(Self {
            session,
            statements,
            patience: options.patience,
            bytes_written: AtomicU64::new(0),
            bytes_read: AtomicU64::new(0),
            conditional: AtomicU64::new(0),
        })
    }

    /// Runs a plain statement; repeats it while too few replicas answer.
    ///
    /// # Errors
    /// Those of the cluster.
    pub(crate) async fn run(
        &self,
        call: &'static str,
        statement: &PreparedStatement,
        values: impl SerializeRow,
    ) -> Result<QueryResult> {
        let start = Instant::now();
        let mut pause = PAUSE_MIN;
        loop {
            match self.session.execute_unpaged(statement, &values).await {
                Ok(answer) => return Ok(answer),
                Err(error) if is_transient(&error) && start.elapsed() < self.patience => {
                    tokio::time::sleep(pause).await;
                    pause = (2 * pause).min(PAUSE_MAX);
                }
                Err(error) => return Err(error_of(call, error)),
            }
        }
    }

    /// Runs a plain statement that writes `bytes` of keys and values.
    ///
    /// # Errors
    /// Those of the cluster.
    pub(crate) async fn write(
        &self,
        call: &'static str,
        statement: &PreparedStatement,
        values: impl SerializeRow,
        bytes: usize,
    ) -> Result<()> {
        self.run(call, statement, values).await?;
        self.bytes_written.fetch_add(bytes as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Runs a query and returns its rows.
    ///
    /// # Errors
    /// Those of the cluster.
    pub(crate) async fn rows<R>(
        &self,
        call: &'static str,
        statement: &PreparedStatement,
        values: impl SerializeRow,
    ) -> Result<Vec<R>>
    where
        R: for<'frame> DeserializeRow<'frame, 'frame>,
    {
        let answer = self.run(call, statement, values).await?;
        let rows = answer.into_rows_result().map_err(|error| error_of_rows(call, error))?;
        self.bytes_read.fetch_add(rows.rows_bytes_size() as u64, Ordering::Relaxed);
        let typed = rows.rows::<R>().map_err(|error| error_of_rows(call, error))?;
        typed
            .collect::<std::result::Result<_, _>>()
            .map_err(|error| corrupt(format!("{call}: a row lacks a column: {error}")))
    }

    /// Sends a conditional write once.
    pub(crate) async fn apply(
        &self,
        statement: &PreparedStatement,
        values: impl SerializeRow,
    ) -> Result<Applied> {
        let answer = match self.session.execute_unpaged(statement, values).await {
            Ok(answer) => answer,
            Err(error) if is_transient(&error) => return Ok(Applied::Unknown(error.into())),
            Err(error) => return Err(error_of("conditional write", error)),
        };

        let call = "conditional write";
        let rows = answer.into_rows_result().map_err(|error| error_of_rows(call, error))?;
        let row =
            rows.first_row::<scylla::value::Row>().map_err(|error| error_of_rows(call, error))?;
        // The first column is `[applied]`; others tell what stands in the way.
        let first = row.columns.into_iter().next().flatten();
        match first.and_then(|value| value.as_boolean()) {
            Some(true) => {
                self.conditional.fetch_add(1, Ordering::Relaxed);
                Ok(Applied::Yes)
            }
            Some(false) => Ok(Applied::No),
            None => Err(corrupt("a conditional write was answered without an outcome")),
        }
    }

    /// When the nodes that can be reached sync their commit logs: the weakest of all.
    pub(crate) async fn sync_mode(&self) -> SyncMode {
        let state = self.session.get_cluster_state();
        let mut mode = SyncMode::BeforeAnswer;
        for node in state.get_nodes_info().iter().filter(|node| node.is_connected()) {
            let mut found = None;
            // The tables of Cassandra and of ScyllaDB with a node's own settings.
            for table in ["system_views.settings", "system.config"] {
                let text = format!("SELECT value FROM {table} WHERE name = 'commitlog_sync'");
                let mut statement = Statement::new(text);
                let target = NodeIdentifier::Node(Arc::clone(node));
                let policy = SingleTargetLoadBalancingPolicy::new(target, None);
                statement.set_load_balancing_policy(Some(policy));
                found = self.setting(statement).await;
                if found.is_some() {
                    break;
                }
            }
            match found.as_deref().map(|value| value.trim_matches('"')) {
                Some("batch" | "group") => {}
                Some(_) => mode = SyncMode::Periodic,
                None => return SyncMode::Unknown,
            }
        }
        mode
    }

    async fn setting(&self, statement: Statement) -> Option<String> {
        let answer = self.session.query_unpaged(statement, ()).await.ok()?;
        let rows = answer.into_rows_result().ok()?;
        rows.maybe_first_row::<(String,)>().ok()?.map(|(value,)| value)
    }

    /// Nodes that the cluster has, and those of them that can be reached.
    pub(crate) fn nodes(&self) -> (usize, usize) {
        let state = self.session.get_cluster_state();
        let nodes = state.get_nodes_info();
        (nodes.len(), nodes.iter().filter(|node| node.is_connected()).count())
    }
}

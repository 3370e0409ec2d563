//! The client that everything here talks through.

mod surface;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use http::HeaderValue;
use http::header::USER_AGENT;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

pub use self::surface::RETRY_AFTER_MAX;
use self::surface::Surface;

/// Most requests that are under way at a time, from all tasks together: what each of them may
/// have at most, and one each for Nodes, Events and the access check, with one to spare. So no
/// request waits here for another's end; a patch that waited would be sent on a look at the Node
/// that has aged meanwhile.
///
/// 660 patches a second were seen with 16 in flight and no more with 64, so each task has 16. The
/// election has [a client of its own](Clients::election).
pub const IN_FLIGHT_MAX: usize = crate::writer::WRITES_AT_ONCE
    + crate::leases::READS_AT_ONCE
    + crate::pods::NODES_AT_ONCE * crate::pods::PODS_AT_ONCE
    + 4;
/// Requests under way of the election: it makes one at a time.
const ELECTION_IN_FLIGHT_MAX: usize = 2;
/// Time to a connection, TLS handshake included.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest silence on a connection. A watch of 30 s may be silent all the time.
pub const READ_TIMEOUT: Duration = Duration::from_secs(40);

/// Where the API server is and who we are to it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// The pod's own ServiceAccount.
    #[default]
    InCluster,
    /// A kubeconfig file and, if not its current one, the context to use.
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// The context; `None` takes the file's current one.
        context: Option<String>,
    },
}

/// Two clients of one API server.
///
/// The election has its own connections and its own bound, so that a backlog of patches never
/// keeps a renewal waiting.
#[derive(Clone)]
pub struct Clients {
    /// For everything but the election.
    pub main: Client,
    /// For the election alone.
    pub election: Client,
    /// Counters of both.
    pub stats: Arc<ClientStats>,
}

/// Counters of the client.
#[derive(Debug, Default)]
pub struct ClientStats {
    /// Requests sent.
    pub requests: AtomicU64,
    /// Requests that had to wait because [`IN_FLIGHT_MAX`] were under way.
    pub waited: AtomicU64,
    /// Answers of 429.
    pub throttled: AtomicU64,
    /// Answers of 5xx.
    pub unavailable: AtomicU64,
    /// Requests that ended without an answer.
    pub unanswered: AtomicU64,
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The pod has no ServiceAccount token, or this is no pod.
    #[error("no in-cluster configuration: {0}; outside a cluster, name a kubeconfig file")]
    InCluster(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The kubeconfig cannot be used.
    #[error("the kubeconfig {path} cannot be used: {source}", path = path.display())]
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The configuration was read, but no client comes of it.
    #[error("no client can be built from the configuration: {0}")]
    Build(#[source] Box<kube::Error>),
}

impl Clients {
    /// Reads the configuration and builds the clients. Nothing is sent yet.
    ///
    /// # Errors
    /// If the configuration is missing, unreadable or makes no sense.
    pub async fn connect(source: &Source) -> Result<Self, ClientError> {
        let config = match source {
            Source::InCluster => {
                Config::incluster().map_err(|error| ClientError::InCluster(Box::new(error)))?
            }
            Source::Kubeconfig { path, context } => {
                let failed = |error| ClientError::Kubeconfig {
                    path: path.clone(),
                    source: error,
                };
                let file = Kubeconfig::read_from(path).map_err(|error| failed(Box::new(error)))?;
                let options = KubeConfigOptions {
                    context: context.clone(),
                    ..KubeConfigOptions::default()
                };
                Config::from_custom_kubeconfig(file, &options)
                    .await
                    .map_err(|error| failed(Box::new(error)))?
            }
        };
        Self::from_config(config)
    }

    /// Builds the clients from a kube configuration, whose retries, timeouts and user agent are
    /// replaced by ours.
    ///
    /// # Errors
    /// If the configuration makes no sense.
    pub fn from_config(mut config: Config) -> Result<Self, ClientError> {
        // kube's own retry layer replays a 429, 503 or 504 up to 15 times: a decision would be
        // written long after it was made.
        config.default_retry = false;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        config.read_timeout = Some(READ_TIMEOUT);
        config.reset_reader_on_write = true;
        config.write_timeout = Some(CONNECT_TIMEOUT);
        config.headers.retain(|(name, _)| name != USER_AGENT);
        config.headers.push((
            USER_AGENT,
            HeaderValue::from_static(concat!("swimlet/", env!("CARGO_PKG_VERSION"))),
        ));
        let stats = Arc::new(ClientStats::default());
        let build = |in_flight| {
            let inner = Client::try_from(config.clone())
                .map_err(|error| ClientError::Build(Box::new(error)))?;
            let namespace = inner.default_namespace().to_owned();
            let service = Surface::new(inner, in_flight, Arc::clone(&stats));
            Ok(Client::new(service, namespace))
        };
        Ok(Self {
            main: build(IN_FLIGHT_MAX)?,
            election: build(ELECTION_IN_FLIGHT_MAX)?,
            stats,
        })
    }
}

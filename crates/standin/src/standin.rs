//! The server as its users hold it.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use http::{HeaderValue, Uri, header};
use kube::{Client, Config};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error::ApiError;
use crate::faults::{Answer, Faults, Hold, Matcher};
use crate::kubelet::{HollowKubelet, KubeletError, KubeletSpec};
use crate::listen::{self, SeverableListener};
use crate::requests::{RequestLog, RequestRecord};
use crate::resource::Target;
use crate::server::{Shared, handle};
use crate::store::Store;
use crate::write::{self, Place};

/// Changes kept per resource. A hundred nodes renew ten Leases a second: more than six minutes of them, longer than
/// any watch of kube's lives (295 s) and than a client stays away in a demo. At 3 KB an object and two objects a
/// change, all five resources together stay below 130 MB even when full of Nodes.
const HISTORY_PER_RESOURCE: usize = 4_096;

/// Watches open at a time: three aggregators hold a handful each, a test some dozens; 1,024 is a leak.
const WATCHES_MAX: usize = 1_024;

/// Requests remembered: an hour of a demo with 12 nodes, ten minutes with a hundred, 15 MB.
const REQUESTS_MAX: usize = 65_536;

/// The namespaces that every cluster has.
const NAMESPACES: [&str; 4] = ["default", "kube-node-lease", "kube-public", "kube-system"];

/// How a [`Standin`] starts. [`Options::default`] suits most tests.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where to listen; port 0 takes a free one. Keep it on loopback: nothing is authenticated.
    pub address: SocketAddr,
    /// How often a watch that allows bookmarks gets one; the real server's default is a minute.
    pub bookmark_period: Duration,
    /// Changes kept per resource for watches to catch up; at least 1.
    pub history_per_resource: usize,
    /// Namespaces besides `default`, `kube-node-lease`, `kube-public` and `kube-system`.
    pub namespaces: Vec<String>,
    /// Seeds UIDs, generated names and the kubelets' jitter, so that runs repeat.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            bookmark_period: Duration::from_secs(60),
            history_per_resource: HISTORY_PER_RESOURCE,
            namespaces: Vec::new(),
            seed: 1,
        }
    }
}

/// Why a [`Standin`] could not start, or come back.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The address could not be listened on.
    #[error(
        "cannot listen on {address}: {source}; choose a free loopback address, or port 0 for any"
    )]
    Listen {
        /// The address asked for.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// A namespace of the options cannot be created.
    #[error(
        "cannot create the namespace {name:?}: give each namespace once, and a DNS label as its name"
    )]
    Namespace {
        /// The name asked for.
        name: String,
    },
}

/// Figures of a [`Standin`], among them one for each bound that was hit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// The newest resource version.
    pub resource_version: u64,
    /// Writes that changed something.
    pub writes: u64,
    /// Changes that left the history because it was full.
    pub dropped_changes: u64,
    /// Requests that left the request log because it was full.
    pub dropped_requests: u64,
    /// Faults that were given up because too many waited.
    pub dropped_faults: u64,
    /// Watches refused because too many were open.
    pub refused_watches: u64,
}

/// A small API server in this process, on a port of its own. It stops when it is dropped.
pub struct Standin {
    shared: Arc<Shared>,
    address: SocketAddr,
    uri: Uri,
    presence: Mutex<Presence>,
    tasks: TaskTracker,
    seed: u64,
}

impl Standin {
    /// Starts a server.
    ///
    /// # Errors
    ///
    /// [`StartError`] if the address cannot be listened on or a namespace cannot be created.
    pub async fn start(options: Options) -> Result<Self, StartError> {
        let fail = |source| StartError::Listen {
            address: options.address,
            source,
        };
        let listener = listen::reserve(options.address)
            .and_then(listen::listen)
            .map_err(fail)?;
        let address = listener.local_addr().map_err(fail)?;
        let uri = Uri::builder()
            .scheme("http")
            .authority(address.to_string())
            .path_and_query("/")
            .build();
        let uri = uri.map_err(|error| fail(io::Error::other(error)))?;
        let store = Arc::new(Store::new(
            options.seed,
            options.history_per_resource.max(1),
        ));
        for name in NAMESPACES
            .into_iter()
            .chain(options.namespaces.iter().map(String::as_str))
        {
            create_namespace(&store, name)
                .map_err(|_| StartError::Namespace { name: name.into() })?;
        }
        let shared = Arc::new(Shared {
            store,
            faults: Faults::default(),
            requests: RequestLog::new(REQUESTS_MAX),
            bookmark_period: options.bookmark_period,
            watches: Arc::new(Semaphore::new(WATCHES_MAX)),
            watches_refused: AtomicU64::new(0),
            stopping: CancellationToken::new(),
        });
        let tasks = TaskTracker::new();
        let present = Present::begin(&shared, &tasks, listener);
        let presence = Mutex::new(Presence::Here(present));
        Ok(Self {
            shared,
            address,
            uri,
            presence,
            tasks,
            seed: options.seed,
        })
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The base URL for a client.
    pub fn url(&self) -> Uri {
        self.uri.clone()
    }

    /// A client's configuration: plain HTTP, no credentials, and without the retry layer that kube 5 has by default,
    /// which would replay 429, 503 and 504 unseen.
    pub fn config(&self, user_agent: &str) -> Config {
        let mut config = Config::new(self.url());
        config.default_retry = false;
        // A name that is no header value shows as no name in the request log.
        config.headers.extend(
            HeaderValue::from_str(user_agent)
                .ok()
                .map(|value| (header::USER_AGENT, value)),
        );
        config
    }

    /// A client without a name of its own. See [`client_named`](Self::client_named).
    ///
    /// # Errors
    ///
    /// As [`kube::Client::try_from`].
    pub fn client(&self) -> Result<Client, kube::Error> {
        self.client_named("standin-client")
    }

    /// A client whose requests bear `user_agent` in the request log. Needs a Tokio runtime around it.
    ///
    /// # Errors
    ///
    /// As [`kube::Client::try_from`].
    pub fn client_named(&self, user_agent: &str) -> Result<Client, kube::Error> {
        Client::try_from(self.config(user_agent))
    }

    /// The requests answered so far, oldest first, up to the newest 65,536.
    pub fn requests(&self) -> Vec<RequestRecord> {
        self.shared.requests.records()
    }

    /// The figures.
    pub fn counters(&self) -> Counters {
        Counters {
            resource_version: self.shared.store.version(),
            writes: self.shared.store.writes(),
            dropped_changes: self.shared.store.dropped_changes(),
            dropped_requests: self.shared.requests.dropped(),
            dropped_faults: self.shared.faults.dropped(),
            refused_watches: self.shared.watches_refused.load(Ordering::Relaxed),
        }
    }

    /// Holds the next matching request, one, before it touches the store, until the [`Hold`] is released or dropped.
    ///
    /// Faults are met in the order in which they were set.
    pub fn hold(&self, matcher: Matcher) -> Hold {
        self.shared.faults.hold(matcher)
    }

    /// Gives the next `count` matching requests this answer; none of them touches the store.
    pub fn answer_next(&self, count: usize, matcher: Matcher, answer: Answer) {
        self.shared.faults.answer(matcher, answer, count);
    }

    /// Gives every matching request this answer, until [`clear_answers`](Self::clear_answers).
    pub fn answer_all(&self, matcher: Matcher, answer: Answer) {
        self.shared.faults.answer(matcher, answer, usize::MAX);
    }

    /// Makes every matching request wait this long before it touches the store, as a slow server does, until
    /// [`clear_answers`](Self::clear_answers).
    pub fn delay_all(&self, matcher: Matcher, delay: Duration) {
        self.shared.faults.delay(matcher, delay);
    }

    /// Takes all answers and delays back; holds stay.
    pub fn clear_answers(&self) {
        self.shared.faults.clear_answers();
    }

    /// Forgets the history, as etcd does when it compacts: every open watch ends with an `ERROR` event of code 410, and
    /// so does every new one from a version given out before.
    pub fn compact(&self) {
        self.shared.store.compact();
    }

    /// Goes away: severs every connection and refuses new ones until [`back`](Self::back). What is stored stays.
    ///
    /// # Errors
    ///
    /// [`StartError::Listen`] if the port was lost in that moment; the server is away all the same.
    pub async fn away(&self) -> Result<(), StartError> {
        let mut presence = self.presence.lock().await;
        let Presence::Here(present) = std::mem::replace(&mut *presence, Presence::Away(None))
        else {
            return Ok(());
        };
        present.end().await;
        let reserved = listen::reserve(self.address).map_err(|source| self.listen_error(source))?;
        *presence = Presence::Away(Some(reserved));
        Ok(())
    }

    /// Comes back on the same address.
    ///
    /// # Errors
    ///
    /// [`StartError::Listen`] if the port was lost; the server stays away, and may try again.
    pub async fn back(&self) -> Result<(), StartError> {
        let mut presence = self.presence.lock().await;
        let Presence::Away(reserved) = &mut *presence else {
            return Ok(());
        };
        let socket = match reserved.take() {
            Some(socket) => Ok(socket),
            None => listen::reserve(self.address),
        };
        let listener = socket
            .and_then(listen::listen)
            .map_err(|source| self.listen_error(source))?;
        *presence = Presence::Here(Present::begin(&self.shared, &self.tasks, listener));
        Ok(())
    }

    /// Starts a hollow kubelet and returns once its Node and its Lease are there. It lives until it is stopped, or
    /// dropped, or the server stops.
    ///
    /// # Errors
    ///
    /// [`KubeletError`] if its port cannot be had or the server does not take its Node.
    pub async fn kubelet(&self, spec: KubeletSpec) -> Result<HollowKubelet, KubeletError> {
        let client = self
            .client_named(&format!("kubelet/{}", spec.name))
            .map_err(KubeletError::Client)?;
        HollowKubelet::start(
            spec,
            client,
            self.seed,
            &self.tasks,
            self.shared.stopping.child_token(),
        )
        .await
    }

    /// Stops: every connection is severed, every hollow kubelet ends, and all tasks are gone when this returns.
    pub async fn shutdown(self) {
        self.shared.stopping.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn listen_error(&self, source: io::Error) -> StartError {
        StartError::Listen {
            address: self.address,
            source,
        }
    }
}

impl Drop for Standin {
    fn drop(&mut self) {
        self.shared.stopping.cancel();
    }
}

enum Presence {
    Here(Present),
    /// With the port, unless it was lost on the way.
    Away(Option<tokio::net::TcpSocket>),
}

/// One stretch of being there.
struct Present {
    severed: CancellationToken,
    accepting: JoinHandle<()>,
}

impl Present {
    fn begin(shared: &Arc<Shared>, tasks: &TaskTracker, listener: TcpListener) -> Self {
        let severed = shared.stopping.child_token();
        let app = Router::new()
            .fallback(handle)
            .with_state(Arc::clone(shared));
        let listener = SeverableListener {
            listener,
            severed: severed.clone(),
        };
        let end = severed.clone();
        let accepting = tasks.spawn(async move {
            tokio::select! {
                ended = axum::serve(listener, app).into_future() => {
                    if let Err(error) = ended {
                        tracing::error!(%error, "the stand-in no longer accepts connections; start it anew");
                    }
                }
                () = end.cancelled() => {}
            }
        });
        Self { severed, accepting }
    }

    /// Returns when nobody listens any more and every connection has been told to end.
    async fn end(self) {
        self.severed.cancel();
        if let Err(error) = self.accepting.await {
            tracing::error!(%error, "the task that accepted connections had died before");
        }
    }
}

fn create_namespace(store: &Store, name: &str) -> Result<(), ApiError> {
    let target = Target::parse("/api/v1/namespaces").and_then(|target| target.endpoint());
    let endpoint = target.ok_or_else(ApiError::path_not_found)?;
    let place = Place {
        endpoint,
        namespace: String::new(),
        name: String::new(),
        status: false,
    };
    write::create(store, place, json!({"metadata": {"name": name}})).map(drop)
}

//! The handle.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use quinn::SendDatagramError;
use swimlet_protocol::codec::encode_frame;
use swimlet_protocol::stream::{SyncPart, SyncRequest};
use swimlet_protocol::{Frame, Identity, MemberKey};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::accept::{self, Admission};
use crate::config::{Config, StartError};
use crate::credentials::{Credentials, CredentialsError, Reloaded, Store};
use crate::endpoint::{self, Bound};
use crate::event::{DialError, Event, EventReceiver, JoinError, SendError};
use crate::pool::Pool;
use crate::shared::{Shared, code, lock};
use crate::stats::{Counters, Stats};
use crate::{dial, sync};

/// How long a shutdown waits for its goodbyes to go out.
const SHUTDOWN_WAIT: Duration = Duration::from_secs(1);
/// Smallest event queue: room for frames beside the reserve of an eighth.
const EVENTS_MIN: usize = 16;

/// A member's end of the mesh: endpoints, links and the tasks that serve them.
///
/// Cheap to clone. When the last handle is dropped everything stops at once;
/// [`shutdown`](Self::shutdown) says goodbye first.
#[derive(Clone)]
pub struct Transport {
    shared: Arc<Shared>,
    _stop: Arc<DropGuard>,
}

impl Transport {
    /// Reads the credentials, binds the addresses and begins to accept.
    ///
    /// # Errors
    /// See [`StartError`]; nothing is left bound.
    pub async fn start(
        config: Config,
        credentials: Credentials,
    ) -> Result<(Self, EventReceiver), StartError> {
        let identity = config.identity.clone();
        let store = tokio::task::spawn_blocking(move || Store::open(credentials, identity))
            .await
            .map_err(|error| StartError::Tls(error.to_string()))??;
        let (events, receiver) = mpsc::channel(config.events_max.max(EVENTS_MIN));
        let shared = Arc::new(shared(config, store, events)?);
        for bound in &shared.endpoints {
            let accept = accept::run(shared.clone(), bound.clone());
            shared.tasks.spawn(accept);
        }
        if !shared.store.is_fixed() {
            shared.tasks.spawn(watch_credentials(shared.clone()));
        }
        let stop = Arc::new(shared.cancel.clone().drop_guard());
        let transport = Self {
            shared,
            _stop: stop,
        };
        Ok((transport, receiver))
    }

    /// The bound addresses, in the order of [`Config::listen`].
    #[must_use]
    pub fn local_addresses(&self) -> &[SocketAddr] {
        &self.shared.addresses
    }

    /// Who this member is.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.shared.config.identity
    }

    /// Dials `peer` at these addresses, in order, each for
    /// [`Config::dial_attempt_timeout`]. Whoever answers must be `peer` by its
    /// certificate.
    ///
    /// Ends in [`Event::LinkUp`] or [`Event::DialFailed`]. Does nothing while
    /// `peer` has an open link or a dial is under way. At most four addresses are tried.
    pub fn dial(&self, peer: &Identity, addresses: &[SocketAddr]) {
        let shared = &self.shared;
        let key = peer.key();
        if key == shared.own {
            return self.dial_failed(key, DialError::Ourselves);
        }
        if shared.pool().current(key).is_some() || !lock(&shared.dialling).insert(key) {
            return;
        }
        let Ok(place) = shared.dial_queue.clone().try_acquire_owned() else {
            lock(&shared.dialling).remove(&key);
            shared.counters.dials_queue_full.inc();
            return self.dial_failed(key, DialError::QueueFull);
        };
        let dial = dial::dial(shared.clone(), peer.clone(), addresses.to_vec(), place);
        shared.tasks.spawn(dial);
    }

    /// Dials whoever is at `address`, any member of our cluster, and syncs with it.
    ///
    /// Ends in [`Event::LinkUp`] and [`Event::SyncAnswered`], or in [`Event::JoinFailed`].
    pub fn join(&self, address: SocketAddr, request: SyncRequest) {
        let shared = &self.shared;
        let Ok(place) = shared.dial_queue.clone().try_acquire_owned() else {
            shared.counters.dials_queue_full.inc();
            let reason = JoinError::Dial(DialError::QueueFull);
            return self.tell_now(Event::JoinFailed { address, reason });
        };
        let join = dial::join(shared.clone(), address, request, place);
        shared.tasks.spawn(join);
    }

    /// Sends a frame over the link to `to`.
    ///
    /// # Errors
    /// If it was certainly not sent. A frame that was may still be lost.
    pub fn send(&self, to: MemberKey, frame: &Frame) -> Result<(), SendError> {
        let counters = &self.shared.counters;
        let sent = self.try_send(to, frame);
        match sent {
            Ok(()) => counters.frames_sent.inc(),
            Err(SendError::NoLink) => counters.frames_unsent_no_link.inc(),
            Err(SendError::Full) => counters.frames_unsent_full.inc(),
            Err(SendError::TooLarge) => counters.frames_unsent_too_large.inc(),
        }
        sent
    }

    /// Asks `to` for a sync, over the link to it.
    ///
    /// Ends in [`Event::SyncAnswered`], once per part. A sync that fails is
    /// counted and not told: the next difference of digests asks again.
    pub fn sync(&self, to: MemberKey, request: SyncRequest) {
        let shared = self.shared.clone();
        let Some(connection) = shared.pool().current(to).cloned() else {
            return shared.counters.syncs_failed.inc();
        };
        if shared.asking.available_permits() == 0 {
            return shared.counters.syncs_over_limit.inc();
        }
        self.shared.tasks.spawn(async move {
            // The failure was counted and logged there.
            let _ = sync::ask(&shared, to, connection, request).await;
        });
    }

    /// Answers a sync request, or does nothing if it timed out meanwhile.
    ///
    /// `more` of the parts is set here. At most 64 parts are sent.
    pub fn reply(&self, token: u64, parts: Vec<SyncPart>) {
        if let Some(reply) = lock(&self.shared.replies).remove(&token) {
            // The request may have timed out in this moment.
            let _ = reply.send(parts);
        }
    }

    /// Closes the link to `peer`; ends in [`Event::LinkDown`] if there was one.
    pub fn close(&self, peer: MemberKey) {
        for connection in self.shared.pool().all(peer) {
            connection.close(code::UNWANTED, b"");
        }
    }

    /// Peers with a link.
    #[must_use]
    pub fn links(&self) -> usize {
        self.shared.pool().len()
    }

    /// Incoming handshakes in progress.
    #[must_use]
    pub fn handshakes(&self) -> usize {
        self.shared.admission.in_progress()
    }

    /// The counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.counters.snapshot()
    }

    /// When the certificate in use expires.
    #[must_use]
    pub fn certificate_expiry(&self) -> SystemTime {
        self.shared.store.current().not_after
    }

    /// Looks at the credential files now, instead of within
    /// [`Config::reload_interval`]; whether new ones were taken into use.
    ///
    /// New handshakes use the new credentials. Links that are up stay up.
    ///
    /// # Errors
    /// If changed files cannot be used; the former credentials stay in use.
    pub async fn reload(&self) -> Result<bool, CredentialsError> {
        reload(&self.shared).await
    }

    /// Plays dead: sockets stay open, everything that comes in or would go out is
    /// discarded. For demos and tests of sudden death: a closed socket would
    /// answer, and a closed link would say goodbye.
    pub fn fall_silent(&self) {
        self.shared.silent.store(true, Ordering::Relaxed);
    }

    /// Ends [`fall_silent`](Self::fall_silent).
    pub fn wake_up(&self) {
        self.shared.silent.store(false, Ordering::Relaxed);
    }

    /// Completes when the transport has stopped: by [`shutdown`](Self::shutdown),
    /// because the event receiver is gone, or because an endpoint failed.
    pub async fn stopped(&self) {
        self.shared.cancel.cancelled().await;
    }

    /// Closes all links with a goodbye and stops; takes at most about 2 s.
    pub async fn shutdown(self) {
        let shared = &self.shared;
        shared.close_all(code::STOPPING);
        shared.cancel.cancel();
        shared.tasks.close();
        let idle = async {
            for bound in &shared.endpoints {
                bound.endpoint.wait_idle().await;
            }
        };
        if timeout(SHUTDOWN_WAIT, idle).await.is_err() {
            tracing::debug!("some peers did not acknowledge the goodbye in time");
        }
        if timeout(SHUTDOWN_WAIT, shared.tasks.wait()).await.is_err() {
            tracing::warn!("some transport tasks did not stop in time");
        }
    }

    fn try_send(&self, to: MemberKey, frame: &Frame) -> Result<(), SendError> {
        let bytes = encode_frame(frame).map_err(|_| SendError::TooLarge)?;
        let Some(connection) = self.shared.pool().current(to).cloned() else {
            return Err(SendError::NoLink);
        };
        // quinn would drop the oldest datagram instead, and say nothing. Two
        // senders may both see the same space; then one old frame is lost so.
        if connection.datagram_send_buffer_space() < bytes.len() {
            return Err(SendError::Full);
        }
        connection
            .send_datagram(Bytes::from(bytes))
            .map_err(|error| match error {
                SendDatagramError::TooLarge => SendError::TooLarge,
                SendDatagramError::UnsupportedByPeer
                | SendDatagramError::Disabled
                | SendDatagramError::ConnectionLost(_) => SendError::NoLink,
            })
    }

    fn dial_failed(&self, peer: MemberKey, reason: DialError) {
        self.shared.counters.dials_failed.inc();
        self.tell_now(Event::DialFailed { peer, reason });
    }

    /// Queues an event from code that cannot wait: lost, and counted, only if the
    /// queue is full to the last of the places that frames leave free.
    fn tell_now(&self, event: Event) {
        if self.shared.events.try_send(event).is_err() {
            self.shared.counters.events_dropped_queue_full.inc();
        }
    }
}

fn shared(config: Config, store: Store, events: mpsc::Sender<Event>) -> Result<Shared, StartError> {
    if config.listen.is_empty() {
        return Err(StartError::NoAddress);
    }
    let transport = endpoint::transport_config(&config)?;
    let server = endpoint::server_config(&config, transport.clone(), store.current())?;
    let counters = Arc::new(Counters::default());
    let silent = Arc::new(AtomicBool::new(false));
    let endpoints = config
        .listen
        .iter()
        .map(|&address| {
            let (server, silent) = (server.clone(), silent.clone());
            endpoint::bind(&config, address, server, silent, counters.clone())
        })
        .collect::<Result<Vec<Bound>, StartError>>()?;
    let own = config.identity.key();
    Ok(Shared {
        own,
        store,
        transport,
        server,
        addresses: endpoints.iter().map(|bound| bound.address).collect(),
        endpoints,
        events,
        counters,
        silent,
        pool: Mutex::new(Pool::new(own, config.links_max)),
        admission: Admission::new(&config),
        dialling: Mutex::new(BTreeSet::new()),
        dial_queue: Arc::new(Semaphore::new(config.dials_queued_max)),
        dials: Semaphore::new(config.dials_max),
        asking: Arc::new(Semaphore::new(config.syncs_max)),
        answering: Arc::new(Semaphore::new(config.syncs_max)),
        replies: Mutex::new(BTreeMap::new()),
        next_token: AtomicU64::new(1),
        cancel: CancellationToken::new(),
        tasks: TaskTracker::new(),
        config,
    })
}

async fn watch_credentials(shared: Arc<Shared>) {
    let period = shared.config.reload_interval;
    let mut ticks = interval_at(Instant::now() + period, period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = shared.cancel.cancelled() => return,
        }
        // The outcome was counted and logged there.
        let _ = reload(&shared).await;
    }
}

async fn reload(shared: &Arc<Shared>) -> Result<bool, CredentialsError> {
    let reader = shared.clone();
    let reloaded = match tokio::task::spawn_blocking(move || reader.store.reload()).await {
        Ok(reloaded) => reloaded,
        // Only when the runtime shuts down: then nothing is reloaded any more.
        Err(_) => return Ok(false),
    };
    match reloaded {
        Ok(Reloaded::Unchanged) => Ok(false),
        Ok(Reloaded::Taken) => {
            shared.counters.credentials_reloaded.inc();
            tracing::info!("new credentials are in use");
            Ok(true)
        }
        Err(error) => {
            shared.counters.credentials_rejected.inc();
            tracing::warn!(%error, "changed credentials are not used; the former ones stay");
            Err(error)
        }
    }
}

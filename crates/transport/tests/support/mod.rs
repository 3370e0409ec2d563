//! Members on loopback: a CA, certificates, transports, and waiting for events.

#![allow(
    dead_code,
    reason = "each test binary uses its own part of the support"
)]

use std::net::SocketAddr;
use std::time::Duration;

use swimlet_protocol::frame::Leave;
use swimlet_protocol::stream::SyncRequest;
use swimlet_protocol::{
    Bounded, ClusterId, Frame, Generation, Identity, Incarnation, MemberKey, MemberRecord,
};
use swimlet_transport::ca::Authority;
use swimlet_transport::{Config, Credentials, Event, EventReceiver, Transport};
use tokio::time::{Instant, timeout_at};

/// Generous: a loaded machine is slow, and a test that waits this long failed.
pub(crate) const DEADLINE: Duration = Duration::from_secs(30);
/// A certificate's life in these tests.
pub(crate) const VALIDITY: Duration = Duration::from_secs(3_600);

/// A member under test.
pub(crate) struct Member {
    pub(crate) transport: Transport,
    pub(crate) events: EventReceiver,
    pub(crate) identity: Identity,
}

pub(crate) fn cluster(id: &str) -> ClusterId {
    id.parse().unwrap()
}

pub(crate) fn identity(uri: &str) -> Identity {
    uri.parse().unwrap()
}

/// Agent `name` of cluster `test`.
pub(crate) fn agent(name: &str) -> Identity {
    identity(&format!("spiffe://test/node/{name}"))
}

pub(crate) fn authority() -> Authority {
    Authority::new(&cluster("test")).unwrap()
}

/// The certificate of `identity` by `authority`, trusting `trusted`.
pub(crate) fn credentials(
    authority: &Authority,
    identity: &Identity,
    trusted: &[&Authority],
) -> Credentials {
    let issued = authority.issue(identity, VALIDITY).unwrap();
    let bundle: String = trusted.iter().map(|authority| authority.pem()).collect();
    Credentials::from_pem(&issued.certificate_pem, &issued.key_pem, &bundle)
}

/// The defaults, on a free port of loopback, looking at files only when asked to.
pub(crate) fn config(identity: &Identity) -> Config {
    let any = "127.0.0.1:0".parse().unwrap();
    Config {
        reload_interval: Duration::from_secs(3_600),
        ..Config::new(identity.clone(), vec![any], [7; 32])
    }
}

impl Member {
    pub(crate) async fn start(authority: &Authority, identity: &Identity) -> Self {
        Self::with(
            config(identity),
            credentials(authority, identity, &[authority]),
        )
        .await
    }

    pub(crate) async fn with(config: Config, credentials: Credentials) -> Self {
        let identity = config.identity.clone();
        let (transport, events) = Transport::start(config, credentials).await.unwrap();
        Self {
            transport,
            events,
            identity,
        }
    }

    pub(crate) fn key(&self) -> MemberKey {
        self.identity.key()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.transport.local_addresses()[0]
    }

    pub(crate) fn dial(&self, peer: &Self) {
        self.transport.dial(&peer.identity, &[peer.address()]);
    }

    /// The next event; fails the test if none comes.
    pub(crate) async fn next(&mut self) -> Event {
        self.next_by(Instant::now() + DEADLINE).await
    }

    async fn next_by(&mut self, deadline: Instant) -> Event {
        match timeout_at(deadline, self.events.recv()).await {
            Ok(Some(event)) => event,
            Ok(None) => panic!("{}: the transport stopped", self.identity),
            Err(_) => panic!("{}: no event in time", self.identity),
        }
    }

    /// The first event that `pick` takes; those before it are dropped.
    pub(crate) async fn wait<T>(&mut self, pick: impl Fn(Event) -> Option<T>) -> T {
        let deadline = Instant::now() + DEADLINE;
        loop {
            if let Some(picked) = pick(self.next_by(deadline).await) {
                return picked;
            }
        }
    }

    pub(crate) async fn link_up(&mut self, peer: &Identity) {
        self.wait(|event| match event {
            Event::LinkUp { peer: up, .. } if up == *peer => Some(()),
            _ => None,
        })
        .await;
    }

    /// The next frame, with its sender.
    pub(crate) async fn frame(&mut self) -> (MemberKey, Frame) {
        self.wait(|event| match event {
            Event::Frame { from, frame } => Some((from, frame)),
            _ => None,
        })
        .await
    }

    /// What has been queued by now.
    pub(crate) fn queued(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.events.try_recv().ok()).collect()
    }

    /// Sends frames to `peer` until one arrives there: the link works.
    pub(crate) async fn reaches(&self, peer: &mut Self, number: u64) {
        let deadline = Instant::now() + DEADLINE;
        loop {
            assert!(Instant::now() < deadline, "no frame arrived");
            // Refused while the link is exchanged; tried again.
            let _ = self.transport.send(peer.key(), &frame(number));
            let wait = Instant::now() + Duration::from_millis(100);
            while let Ok(Some(event)) = timeout_at(wait, peer.events.recv()).await {
                match event {
                    Event::Frame { from, frame: got }
                        if from == self.key() && got == frame(number) =>
                    {
                        return;
                    }
                    Event::LinkDown { reason, .. } => panic!("the link went down: {reason}"),
                    _ => {}
                }
            }
        }
    }
}

/// Two members with a link that the first one dialled.
pub(crate) async fn linked() -> (Member, Member) {
    let authority = authority();
    let mut a = Member::start(&authority, &agent("a")).await;
    let mut b = Member::start(&authority, &agent("b")).await;
    a.dial(&b);
    a.link_up(&agent("b")).await;
    b.link_up(&agent("a")).await;
    (a, b)
}

/// A small frame that is told from others by its number.
pub(crate) fn frame(number: u64) -> Frame {
    Frame::Leave(Leave {
        generation: Generation(number),
        incarnation: Incarnation(0),
    })
}

pub(crate) fn request(of: &Identity) -> SyncRequest {
    SyncRequest {
        record: record(of).into(),
        incarnation: Incarnation(1),
        digest: 0,
        ranges: Bounded::new(),
    }
}

pub(crate) fn record(of: &Identity) -> MemberRecord {
    MemberRecord {
        role: of.role,
        name: of.name.clone(),
        generation: Generation(1),
        zone: "z".parse().unwrap(),
        addresses: Bounded::new(),
        kubelet_port: 10_250,
    }
}

/// Waits until `done` holds.
pub(crate) async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !done() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

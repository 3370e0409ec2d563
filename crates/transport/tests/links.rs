//! Links, frames and syncs between members on loopback.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test's helpers fail the test as the test itself would"
)]

mod support;

use std::time::Duration;

use support::{
    Member, agent, authority, config, credentials, frame, identity, linked, request, until,
};
use swimlet_protocol::stream::{SyncMember, SyncPart};
use swimlet_protocol::{Bounded, Incarnation, MemberState, Role};
use swimlet_transport::{
    Config, DialError, Event, JoinError, LinkLoss, SendError, StartError, Transport,
};

/// Frames go both ways over one link and are attributed to the certificate's name.
#[tokio::test]
async fn a_link_carries_frames_under_the_certificates_name() {
    let (mut a, mut b) = linked().await;
    a.reaches(&mut b, 1).await;
    b.reaches(&mut a, 2).await;
    assert_eq!((a.transport.links(), b.transport.links()), (1, 1));
}

/// The role is the certificate's, and so is what an aggregator may do.
#[tokio::test]
async fn an_aggregators_role_comes_from_its_certificate() {
    let authority = authority();
    let aggregator = identity("spiffe://test/aggregator/agg-0");
    let mut node = Member::start(&authority, &agent("a")).await;
    let leader = Member::start(&authority, &aggregator).await;
    leader.dial(&node);
    let (peer, dialled) = node
        .wait(|event| match event {
            Event::LinkUp { peer, dialled, .. } => Some((peer, dialled)),
            _ => None,
        })
        .await;
    assert_eq!(peer.role, Role::Aggregator);
    assert_eq!(peer, aggregator);
    assert!(!dialled);
}

/// Without a link nothing is sent, and that is said and counted.
#[tokio::test]
async fn a_frame_without_a_link_is_refused() {
    let a = Member::start(&authority(), &agent("a")).await;
    assert_eq!(
        a.transport.send(agent("b").key(), &frame(1)),
        Err(SendError::NoLink)
    );
    assert_eq!(a.transport.stats().frames_unsent_no_link, 1);
}

/// A member that does not know the others joins by address alone.
#[tokio::test]
async fn a_join_learns_the_seeds_name_and_its_table() {
    let authority = authority();
    let mut seed = Member::start(&authority, &agent("seed")).await;
    let mut new = Member::start(&authority, &agent("new")).await;
    new.transport.join(seed.address(), request(&agent("new")));

    let (from, token, asked) = seed
        .wait(|event| match event {
            Event::SyncRequested {
                from,
                token,
                request,
            } => Some((from, token, request)),
            _ => None,
        })
        .await;
    assert_eq!(from, agent("new"));
    assert_eq!(asked, request(&agent("new")));
    seed.transport.reply(token, table(1_200));

    new.link_up(&agent("seed")).await;
    let mut members = 0;
    loop {
        let (from, part) = new
            .wait(|event| match event {
                Event::SyncAnswered { from, part } => Some((from, part)),
                _ => None,
            })
            .await;
        assert_eq!(from, agent("seed").key());
        members += part.members.len();
        if !part.more {
            break;
        }
    }
    assert_eq!(members, 1_200);
    until("the answer is counted", || {
        seed.transport.stats().syncs_answered == 1
    })
    .await;
}

/// `count` members in parts, each part as if it were the last: the transport sets `more`.
fn table(count: usize) -> Vec<SyncPart> {
    let members: Vec<SyncMember> = (0..count)
        .map(|n| SyncMember {
            record: support::record(&agent(&format!("n{n}"))).into(),
            incarnation: Incarnation(0),
            state: MemberState::Alive,
            heard_s: 1,
        })
        .collect();
    members
        .chunks(500)
        .map(|chunk| SyncPart {
            members: Bounded::fill(&mut chunk.iter().cloned()),
            more: false,
        })
        .collect()
}

/// A headless Service resolves to every member, so to oneself too.
#[tokio::test]
async fn joining_oneself_is_told_apart() {
    let mut a = Member::start(&authority(), &agent("a")).await;
    a.transport.join(a.address(), request(&agent("a")));
    let reason = a
        .wait(|event| match event {
            Event::JoinFailed { reason, .. } => Some(reason),
            _ => None,
        })
        .await;
    assert_eq!(reason, JoinError::Dial(DialError::Ourselves));
    assert_eq!(a.transport.links(), 0);
}

/// Both dial at once: one link stays, told up once and never down, and it carries frames.
#[tokio::test]
async fn simultaneous_dials_leave_one_link_without_a_flap() {
    let authority = authority();
    let mut a = Member::start(&authority, &agent("a")).await;
    let mut b = Member::start(&authority, &agent("b")).await;
    a.dial(&b);
    b.dial(&a);
    a.link_up(&agent("b")).await;
    b.link_up(&agent("a")).await;
    until("both dials are done and settled on both sides", || {
        [&a, &b].into_iter().all(|member| {
            let stats = member.transport.stats();
            stats.links_doubled == 1 && stats.links_settled == 1
        })
    })
    .await;
    a.reaches(&mut b, 1).await;
    b.reaches(&mut a, 2).await;
    assert_eq!((a.transport.links(), b.transport.links()), (1, 1));
    for member in [&a, &b] {
        assert_eq!(member.transport.stats().links_up, 1);
        assert_eq!(member.transport.stats().links_down, 0);
    }
}

/// A restarted member cannot know its former links; its reset says so at the next packet.
#[tokio::test]
async fn a_restarted_peer_is_noticed_by_its_stateless_reset() {
    let authority = authority();
    let mut a = Member::start(&authority, &agent("a")).await;
    let mut b = Member::start(&authority, &agent("b")).await;
    a.dial(&b);
    a.link_up(&agent("b")).await;
    b.link_up(&agent("a")).await;

    // Dies without a word, and starts again on the same port with the same seed.
    let address = b.address();
    b.transport.fall_silent();
    b.transport.shutdown().await;
    let again = Config {
        listen: vec![address],
        ..config(&agent("b"))
    };
    let _b = start_on(again, &authority).await;

    let _ = a.transport.send(agent("b").key(), &frame(1));
    let reason = a
        .wait(|event| match event {
            Event::LinkDown { reason, .. } => Some(reason),
            _ => None,
        })
        .await;
    assert_eq!(reason, LinkLoss::Reset);
}

/// The former socket is released by a task; binding may have to wait for it.
async fn start_on(config: Config, authority: &swimlet_transport::ca::Authority) -> Member {
    loop {
        let credentials = credentials(authority, &config.identity, &[authority]);
        match Transport::start(config.clone(), credentials).await {
            Ok((transport, events)) => {
                return Member {
                    transport,
                    events,
                    identity: config.identity,
                };
            }
            Err(StartError::Bind { .. }) => tokio::time::sleep(Duration::from_millis(5)).await,
            Err(error) => panic!("{error}"),
        }
    }
}

/// A restarted member that dials anew is linked, though the other side still
/// holds the former connection and would prefer it.
#[tokio::test]
async fn a_restarted_peer_that_dials_replaces_its_dead_link() {
    let authority = authority();
    let mut a = Member::start(&authority, &agent("a")).await;
    let mut b = Member::start(&authority, &agent("b")).await;
    // Dialled by the smaller key, so preferred while it lives.
    let (smaller, larger) = if a.key() < b.key() {
        (&mut a, &mut b)
    } else {
        (&mut b, &mut a)
    };
    smaller.dial(larger);
    smaller.link_up(&larger.identity).await;
    larger.link_up(&smaller.identity).await;

    larger.transport.fall_silent();
    let restarted = Config {
        // Another seed: the former life's resets cannot be made any more.
        reset_seed: [8; 32],
        ..config(&larger.identity)
    };
    let mut larger = Member::with(
        restarted,
        credentials(&authority, &larger.identity, &[&authority]),
    )
    .await;
    larger.dial(smaller);
    larger.link_up(&smaller.identity).await;
    until("the two are settled", || {
        smaller.transport.stats().links_settled == 1
    })
    .await;
    smaller.reaches(&mut larger, 1).await;
    larger.reaches(smaller, 2).await;
    assert_eq!(smaller.transport.links(), 1);
    assert_eq!(smaller.transport.stats().links_down, 0);
}

/// Closing is told on both sides, and the peer can be dialled again at once.
#[tokio::test]
async fn a_closed_link_goes_down_on_both_sides_and_can_be_dialled_again() {
    let (mut a, mut b) = linked().await;
    a.transport.close(b.key());
    a.dial(&b);
    let mut seen = Vec::new();
    while seen.len() < 2 {
        match a.next().await {
            Event::LinkDown { reason, .. } => {
                assert_eq!(reason, LinkLoss::ClosedHere);
                seen.push("down");
            }
            Event::LinkUp { .. } => seen.push("up"),
            _ => {}
        }
    }
    assert_eq!(seen, ["down", "up"]);
    let down = b
        .wait(|event| match event {
            Event::LinkDown { reason, .. } => Some(reason),
            _ => None,
        })
        .await;
    assert_eq!(down, LinkLoss::ClosedByPeer);
    b.link_up(&agent("a")).await;
}

/// A simulated death is silence: no goodbye, no refusal. After it the link goes on.
#[tokio::test]
async fn a_silent_member_says_nothing_and_wakes_up_with_its_links() {
    let (mut a, mut b) = linked().await;
    let authority = authority();
    let mut stranger = Member::start(&authority, &agent("c")).await;
    b.transport.fall_silent();
    let before = b.transport.stats().frames_received;
    assert_eq!(a.transport.send(b.key(), &frame(1)), Ok(()));
    // A dial into the silence ends by its own timeout, not by a refusal.
    stranger.dial(&b);
    let reason = stranger
        .wait(|event| match event {
            Event::DialFailed { reason, .. } => Some(reason),
            _ => None,
        })
        .await;
    assert_eq!(reason, DialError::Timeout);
    assert_eq!(b.transport.stats().frames_received, before);
    assert_eq!(a.transport.links(), 1);

    b.transport.wake_up();
    a.reaches(&mut b, 2).await;
    b.reaches(&mut a, 3).await;
}

/// A port in use is said by its address, and nothing stays bound.
#[tokio::test]
async fn a_port_in_use_is_named() {
    let authority = authority();
    let first = Member::start(&authority, &agent("a")).await;
    let free = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let free_address = free.local_addr().unwrap();
    drop(free);
    let second = Config {
        listen: vec![free_address, first.address()],
        ..config(&agent("b"))
    };
    let credentials = credentials(&authority, &agent("b"), &[&authority]);
    let Err(error) = Transport::start(second, credentials).await else {
        panic!("a taken port was bound");
    };
    let text = error.to_string();
    assert!(text.contains(&first.address().to_string()), "{text}");
    assert!(matches!(error, StartError::Bind { .. }), "{text}");
    until("the other address is free again", || {
        std::net::UdpSocket::bind(free_address).is_ok()
    })
    .await;
}

/// Both families: each address is dialled from the socket of its family, and the
/// first that answers is taken.
#[tokio::test]
async fn a_dual_stack_member_dials_either_family() {
    let authority = authority();
    let both = |name: &str| Config {
        listen: vec!["127.0.0.1:0".parse().unwrap(), "[::1]:0".parse().unwrap()],
        ..config(&agent(name))
    };
    let start = async |name: &str| {
        Member::with(
            both(name),
            credentials(&authority, &agent(name), &[&authority]),
        )
        .await
    };
    let mut a = start("a").await;
    let b = start("b").await;
    let nobody = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let addresses = [
        nobody.local_addr().unwrap(),
        b.transport.local_addresses()[1],
    ];
    a.transport.dial(&agent("b"), &addresses);
    let remote = a
        .wait(|event| match event {
            Event::LinkUp { remote, .. } => Some(remote),
            _ => None,
        })
        .await;
    assert_eq!(remote, addresses[1]);
}

/// A link beyond the limit is refused; those that are up stay.
#[tokio::test]
async fn links_are_bounded() {
    let authority = authority();
    let small = Config {
        links_max: 1,
        ..config(&agent("hub"))
    };
    let mut hub = Member::with(small, credentials(&authority, &agent("hub"), &[&authority])).await;
    let a = Member::start(&authority, &agent("a")).await;
    let b = Member::start(&authority, &agent("b")).await;
    a.dial(&hub);
    hub.link_up(&agent("a")).await;
    b.dial(&hub);
    until("the second is refused", || {
        hub.transport.stats().links_refused_full == 1
    })
    .await;
    assert_eq!(hub.transport.links(), 1);
    a.reaches(&mut hub, 1).await;
}

/// A shutdown says goodbye: peers need no timeout to know.
#[tokio::test]
async fn a_shutdown_closes_links_with_a_goodbye() {
    let (mut a, b) = linked().await;
    b.transport.shutdown().await;
    let reason = a
        .wait(|event| match event {
            Event::LinkDown { reason, .. } => Some(reason),
            _ => None,
        })
        .await;
    assert_eq!(reason, LinkLoss::ClosedByPeer);
}

/// An owner that does not read events loses frames, counted, but no word of links.
#[tokio::test]
async fn a_slow_owner_loses_frames_and_no_link_events() {
    let authority = authority();
    let small = Config {
        events_max: 16,
        ..config(&agent("slow"))
    };
    let mut slow = Member::with(
        small,
        credentials(&authority, &agent("slow"), &[&authority]),
    )
    .await;
    let mut a = Member::start(&authority, &agent("a")).await;
    a.dial(&slow);
    a.link_up(&agent("slow")).await;
    until("frames are dropped", || {
        let _ = a.transport.send(slow.key(), &frame(1));
        slow.transport.stats().frames_dropped_queue_full > 10
    })
    .await;
    a.transport.close(slow.key());
    let mut links = Vec::new();
    while links.len() < 2 {
        match slow.next().await {
            Event::LinkUp { .. } => links.push("up"),
            Event::LinkDown { .. } => links.push("down"),
            _ => {}
        }
    }
    assert_eq!(links, ["up", "down"]);
}

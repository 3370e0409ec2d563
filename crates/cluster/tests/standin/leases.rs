//! Live reads of Leases.

use std::time::Duration;

use swimlet_cluster::Mode;
use swimlet_cluster::leases::LEASE_READS_MAX;
use swimlet_standin::{Answer, Matcher, Verb};
use swimlet_verdict::{Input, LeaseRead};

use crate::common::Running;
use crate::support::{Scene, kubelet, set_ready, standin, start, to};

/// Guards the live read: a fingerprint that moves with the kubelet, 404 as none.
#[tokio::test]
async fn leases_are_read_live() {
    let standin = standin().await;
    let alive = kubelet(&standin, "a", &[]).await;
    let mut edge = start(&standin, Mode::Observe);
    let seen = edge.node("a").await;
    let first = lease(&mut edge, &seen.node).await;
    let LeaseRead::Renewed { fingerprint, .. } = first else {
        panic!("{first:?}")
    };
    loop {
        match lease(&mut edge, &seen.node).await {
            LeaseRead::Renewed {
                fingerprint: next, ..
            } if next != fingerprint => break,
            _ => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
    alive.kill().await.unwrap();
    let still = lease(&mut edge, &seen.node).await;
    assert_eq!(lease(&mut edge, &seen.node).await, still);
    let mut nobody = seen.node.clone();
    nobody.name = "nobody".parse().unwrap();
    assert_eq!(lease(&mut edge, &nobody).await, LeaseRead::None);
    let matcher = Matcher::any().verb(Verb::Get).resource("leases").name("a");
    standin.answer_next(1, matcher, Answer::internal_error());
    assert_eq!(lease(&mut edge, &seen.node).await, LeaseRead::Failed);
}

async fn lease(edge: &mut Running, node: &swimlet_verdict::NodeRef) -> LeaseRead {
    edge.handle.read_lease(node.clone()).unwrap();
    edge.next("the Lease", |input| match input {
        Input::Lease { read, .. } => Some(read),
        _ => None,
    })
    .await
}

/// Guards a node that reports its status and writes no Lease any more: the Lease that it left
/// behind is none.
#[tokio::test]
async fn a_lease_that_was_left_behind_is_none() {
    let Scene {
        standin: _running,
        client,
        mut edge,
        seen,
    } = Scene::of(Mode::Observe, &[]).await;
    let first = lease(&mut edge, &seen.node).await;
    assert!(matches!(first, LeaseRead::Renewed { .. }), "{first:?}");
    set_ready(&client, "a", "True", "KubeletReady", "2040-01-01T00:00:00Z").await;
    while edge.node("a").await.ready.unwrap().heartbeat == seen.ready.as_ref().unwrap().heartbeat {}
    assert_eq!(lease(&mut edge, &seen.node).await, LeaseRead::None);
}

/// Guards the judge against questions that nobody answers: one too many is refused at once, and
/// every other is answered, be it with a failure.
#[tokio::test]
async fn every_question_about_a_lease_is_answered_and_one_too_many_refused() {
    let Scene {
        standin,
        mut edge,
        seen,
        ..
    } = Scene::of(Mode::Observe, &[]).await;
    let leases = to(Verb::Get, "leases").namespace("kube-node-lease");
    standin.delay_all(leases, Duration::from_secs(1));
    for _ in 0..LEASE_READS_MAX {
        edge.handle.read_lease(seen.node.clone()).unwrap();
    }
    let refused = edge.handle.read_lease(seen.node.clone()).unwrap_err();
    let failed = Input::Lease {
        node: seen.node.clone(),
        read: LeaseRead::Failed,
    };
    assert_eq!(*refused, failed);
    for _ in 0..LEASE_READS_MAX {
        edge.next("an answer", |input| {
            matches!(input, Input::Lease { .. }).then_some(())
        })
        .await;
    }
    standin.clear_answers();
    let read = lease(&mut edge, &seen.node).await;
    assert!(matches!(read, LeaseRead::Renewed { .. }), "{read:?}");
}

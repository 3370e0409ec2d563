//! The election, and what it tells of the API server.

use swimlet_cluster::Mode;
use swimlet_standin::Answer;
use swimlet_verdict::{ApiHealth, Input};

use crate::common::{PATIENCE, QUICK, Running, config, until};
use crate::support::{standin, start, value};

/// Guards failover: a clean stop is followed at once, and only one leads.
#[tokio::test]
async fn a_stopped_leader_is_followed() {
    let standin = standin().await;
    let first = start(&standin, Mode::Observe);
    first.leads().await;
    let second = config("agg-1", Mode::Observe);
    let second = Running::start(standin.config("replaced"), second);
    let handle = second.handle.clone();
    until("the second sees the first", async || {
        handle.holder().as_deref() == Some("agg-0")
    })
    .await;
    assert!(first.handle.leadership().leads());
    assert!(!second.handle.leadership().leads());
    first.stopped().await.unwrap();
    second.leads().await;
    until("the record tells", async || {
        handle.holder().as_deref() == Some("agg-1")
    })
    .await;
}

/// Guards that a leader which loses the API server stops believing, and says so.
#[tokio::test]
async fn a_leader_without_the_api_server_steps_back() {
    let standin = standin().await;
    let mut quick = config("agg-0", Mode::Observe);
    quick.election.timing = QUICK;
    let mut edge = Running::start(standin.config("replaced"), quick);
    edge.next("leadership", |input| {
        (input == Input::Leadership(true)).then_some(())
    })
    .await;
    let leadership = edge.handle.leadership();
    standin.away().await.unwrap();
    edge.next("the end of leadership", |input| {
        (input == Input::Leadership(false)).then_some(())
    })
    .await;
    assert!(!leadership.leads(), "an old copy answers by the clock");
    standin.back().await.unwrap();
    edge.leads().await;
    let stopped = tokio::time::timeout(PATIENCE, edge.stopped())
        .await
        .unwrap();
    stopped.unwrap();
}

/// Guards the silences that the judge measures: one failed call is not told as an outage, two in
/// a row are.
#[tokio::test]
async fn one_failed_call_is_no_outage_and_two_are() {
    let standin = standin().await;
    let mut edge = start(&standin, Mode::Observe);
    edge.leads().await;
    let stats = edge.handle.stats().election.clone();
    let calls = || {
        swimlet_standin::Matcher::any()
            .resource("leases")
            .name("swimlet-aggregator")
    };
    for _ in 0..3 {
        let (failures, renewals) = (value(&stats.failures), value(&stats.renewals));
        standin.answer_next(1, calls(), Answer::internal_error());
        until("a call fails and others do not", async || {
            value(&stats.failures) > failures && value(&stats.renewals) > renewals + 1
        })
        .await;
    }
    let mut told = Vec::new();
    while let Ok(input) = edge.inputs.try_recv() {
        if let Input::Api(health) = input {
            told.push(health);
        }
    }
    assert!(told.ends_with(&[ApiHealth::Working]), "{told:?}");
    assert!(
        !told[1.min(told.len() - 1)..].contains(&ApiHealth::Failing),
        "{told:?}"
    );
    standin.answer_all(calls(), Answer::internal_error());
    for health in [ApiHealth::Failing, ApiHealth::Working] {
        edge.next("the news", |input| {
            (input == Input::Api(health)).then_some(())
        })
        .await;
        standin.clear_answers();
    }
    assert!(edge.handle.leadership().leads(), "its time had not run out");
}

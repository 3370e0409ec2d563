use swimlet_verdict::{NodeRef, Verdict};

use super::*;
use crate::writer::fixtures;

fn decision(name: &str, verdict: Verdict) -> Decision {
    Decision {
        node: NodeRef {
            name: name.parse().unwrap(),
            uid: name.into(),
        },
        verdict,
        ..fixtures::decision()
    }
}

fn queue() -> Queue {
    Queue::new(Arc::default())
}

fn put(queue: &Queue, name: &str) {
    queue.put(decision(name, Verdict::Unreachable)).unwrap();
}

fn names(decisions: &[Decision]) -> Vec<&str> {
    decisions.iter().map(|d| d.node.name.as_str()).collect()
}

/// Guards against starvation: whoever was decided first is written first, whatever its name, and
/// a Node that is being written waits for the end of that.
#[tokio::test(start_paused = true)]
async fn the_oldest_is_begun_first_and_never_twice_at_a_time() {
    let queue = queue();
    for name in ["z", "a", "m"] {
        put(&queue, name);
    }
    let first = queue.begin().unwrap().decision;
    assert_eq!(first.node.name.as_str(), "z");
    put(&queue, "z");
    assert_eq!(queue.begin().unwrap().decision.node.name.as_str(), "a");
    assert_eq!(queue.begin().unwrap().decision.node.name.as_str(), "m");
    assert!(queue.begin().is_none(), "its attempt is under way");
    assert_eq!(queue.len(), 4);
    queue.finished(&first.node.uid);
    assert_eq!(queue.begin().unwrap().decision.node.name.as_str(), "z");
}

/// Guards against writing what was decided long ago: only what is too old comes out, and a newer
/// decision about the same Node is as young as it is.
#[tokio::test(start_paused = true)]
async fn a_decision_that_waited_too_long_comes_out_unwritten() {
    let queue = queue();
    put(&queue, "old");
    put(&queue, "renewed");
    tokio::time::advance(DECISION_AGE_MAX).await;
    assert!(queue.take_aged().is_none());
    put(&queue, "young");
    put(&queue, "renewed");
    tokio::time::advance(Duration::from_millis(1)).await;
    assert_eq!(queue.take_aged().unwrap().node.name.as_str(), "old");
    assert!(queue.take_aged().is_none());
    assert_eq!(names(&queue.take_all()), ["young", "renewed"]);
    assert_eq!(queue.stats.aged.load(Ordering::Relaxed), 1);
}

/// Guards that a word which forbids a write is never late and never lost: it takes out what
/// waits, stops what is under way, and finds room in a full queue.
#[tokio::test(start_paused = true)]
async fn a_withdrawal_takes_effect_at_once_and_finds_room_in_a_full_queue() {
    let queue = queue();
    put(&queue, "busy");
    let begun = queue.begin().unwrap();
    for index in 0..PENDING_MAX {
        put(&queue, &format!("n{index}"));
    }
    let refused = queue.put(decision("one-too-many", Verdict::Unreachable));
    assert_eq!(refused.unwrap_err().node.name.as_str(), "one-too-many");
    for name in ["busy", "n0"] {
        queue.put(decision(name, Verdict::Alive)).unwrap();
    }
    assert!(begun.withdrawn.load(Ordering::Relaxed));
    assert_eq!(queue.begin().unwrap().decision.node.name.as_str(), "n1");
    assert_eq!(queue.stats.overflow.load(Ordering::Relaxed), 1);
    put(&queue, "fits-again");
}

/// Guards the newest word: what failed does not come back over it.
#[tokio::test(start_paused = true)]
async fn what_failed_does_not_displace_a_newer_decision() {
    let queue = queue();
    put(&queue, "a");
    let failed = queue.begin().unwrap().decision;
    let mut newer = decision("a", Verdict::KubeletDown);
    newer.episode = 2;
    queue.put(newer).unwrap();
    queue.finished(&failed.node.uid);
    queue.put_back(failed);
    let all = queue.take_all();
    assert_eq!(all.len(), 1);
    assert_eq!(all[0].episode, 2);
}

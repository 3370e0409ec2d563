use swimlet_protocol::MemberKey;
use tokio::sync::oneshot;

use super::*;

/// Guards the evidence: while the edge has no end of news, the mesh and people are heard.
#[tokio::test]
async fn nobody_is_drowned_out() {
    const EACH: usize = 200;
    let (edge, mut edge_events) = mpsc::channel(EACH);
    let (member, mut member_events) = mpsc::channel(EACH);
    let (asker, mut questions) = mpsc::channel(EACH);
    for _ in 0..EACH {
        edge.try_send(News::NodesListed).unwrap();
        let by = MemberKey(1);
        member.try_send(Event::Refused { by }).unwrap();
        let (reply, _) = oneshot::channel();
        asker.try_send(Question { reply }).ok().unwrap();
    }
    let (mut news, mut events, mut asked) = (0, 0, 0);
    for _ in 0..EACH {
        match heard(&mut edge_events, &mut member_events, &mut questions).await {
            Next::Take(Input::Edge(_)) => news += 1,
            Next::Take(Input::Member(_)) => events += 1,
            Next::Question(_) => asked += 1,
            _ => unreachable!("nothing else was sent"),
        }
    }
    assert!(
        news > 0 && events > 0 && asked > 0,
        "{news} {events} {asked}"
    );
}

/// Guards memory: a driver that takes nothing for long costs the newest orders, counted.
#[test]
fn orders_have_a_bound() {
    let subject = MemberKey(1);
    let mut orders = Orders::default();
    assert!(orders.is_empty());
    for _ in 0..ORDERS_MAX + 3 {
        orders.push(member::Input::Observers { subject });
    }
    assert_eq!((orders.waiting.len(), orders.dropped), (ORDERS_MAX, 3));
}

use super::*;

fn admission() -> Admission {
    Admission {
        max: 6,
        retry_above: 2,
        per_ip_max: 3,
        in_progress: Arc::default(),
    }
}

fn ip(last: u8) -> IpAddr {
    [10, 0, 0, last].into()
}

fn begin(admission: &Admission, from: IpAddr, proven: bool) -> Ticket {
    match admission.decide(from, proven) {
        Admit::Begin(ticket) => ticket,
        other => panic!("{other:?}"),
    }
}

/// Forged addresses fill the places below the Retry mark and no more, and do not
/// count against the address they forge.
#[test]
fn unproven_addresses_share_the_places_below_the_mark() {
    let admission = admission();
    let _forged = [
        begin(&admission, ip(1), false),
        begin(&admission, ip(1), false),
    ];
    for last in 1..100 {
        assert!(matches!(admission.decide(ip(last), false), Admit::Retry));
    }
    let _proven: Vec<Ticket> = (0..3).map(|_| begin(&admission, ip(1), true)).collect();
    assert_eq!(admission.in_progress(), 5);
}

/// One address cannot take all places.
#[test]
fn a_proven_address_has_its_own_limit() {
    let admission = admission();
    let mut of_one: Vec<Ticket> = (0..3).map(|_| begin(&admission, ip(1), true)).collect();
    assert!(matches!(admission.decide(ip(1), true), Admit::Refuse));
    let _other = begin(&admission, ip(2), true);
    of_one.pop();
    let _again = begin(&admission, ip(1), true);
}

/// When all places are taken, only proven addresses get an answer.
#[test]
fn a_full_house_answers_proven_addresses_only() {
    let admission = admission();
    let tickets: Vec<Ticket> = (0..6).map(|n| begin(&admission, ip(n), true)).collect();
    assert!(matches!(admission.decide(ip(9), true), Admit::Refuse));
    assert!(matches!(admission.decide(ip(9), false), Admit::Ignore));
    drop(tickets);
    assert_eq!(admission.in_progress(), 0);
    assert!(lock(&admission.in_progress).by_ip.is_empty());
}

//! Who may link, and under which name.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test's helpers fail the test as the test itself would"
)]

mod support;

use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use support::{
    Member, VALIDITY, agent, authority, cluster, config, credentials, identity, linked, request,
    until,
};
use swimlet_protocol::Identity;
use swimlet_transport::ca::Authority;
use swimlet_transport::{
    Config, Credentials, CredentialsError, DialError, Event, LinkLoss, Refusal, RefusedReason,
    StartError, Transport,
};

async fn dial_error(member: &mut Member) -> DialError {
    member
        .wait(|event| match event {
            Event::DialFailed { reason, .. } => Some(reason),
            Event::LinkUp { peer, .. } => panic!("linked to {peer}"),
            _ => None,
        })
        .await
}

async fn refusal(member: &mut Member) -> RefusedReason {
    member
        .wait(|event| match event {
            Event::Refused { reason, .. } => Some(reason),
            Event::LinkUp { peer, .. } => panic!("linked to {peer}"),
            _ => None,
        })
        .await
}

/// Scenario 26: a foreign cluster's member is refused by the one who is dialled,
/// and the foreigner never takes the link for up.
#[tokio::test]
async fn a_foreign_ca_is_refused() {
    let (ours, foreign) = (authority(), authority());
    let mut a = Member::start(&ours, &agent("a")).await;
    // It trusts us; we do not trust it.
    let mut stranger = Member::with(
        config(&agent("b")),
        credentials(&foreign, &agent("b"), &[&ours, &foreign]),
    )
    .await;
    stranger.dial(&a);
    assert_eq!(
        refusal(&mut a).await,
        RefusedReason::Certificate(Refusal::ForeignCa)
    );
    let reason = dial_error(&mut stranger).await;
    assert!(matches!(reason, DialError::TurnedAway(_)), "{reason}");
    assert_eq!(stranger.transport.stats().links_up, 0);
    // The other way round the dialler refuses.
    a.dial(&stranger);
    assert_eq!(
        dial_error(&mut a).await,
        DialError::Certificate(Refusal::ForeignCa)
    );
}

/// Scenario 26: even if both clusters share a CA, the cluster in the name counts.
#[tokio::test]
async fn another_cluster_under_the_same_ca_is_refused() {
    let authority = authority();
    let other = identity("spiffe://other/node/b");
    let mut a = Member::start(&authority, &agent("a")).await;
    let mut b = Member::start(&authority, &other).await;
    let wrong = |found: &str| Refusal::WrongCluster {
        found: found.to_owned(),
    };
    a.dial(&b);
    assert_eq!(
        dial_error(&mut a).await,
        DialError::Certificate(wrong("other"))
    );
    a.transport.join(b.address(), request(&agent("a")));
    b.dial(&a);
    assert_eq!(
        dial_error(&mut b).await,
        DialError::Certificate(wrong("test"))
    );
    assert_eq!((a.transport.links(), b.transport.links()), (0, 0));
}

/// Scenario 27 and 8: whoever answers at a member's address must be that member.
#[tokio::test]
async fn another_members_answer_is_refused() {
    let authority = authority();
    let mut a = Member::start(&authority, &agent("a")).await;
    let b = Member::start(&authority, &agent("b")).await;
    a.transport.dial(&agent("c"), &[b.address()]);
    assert_eq!(
        dial_error(&mut a).await,
        DialError::Certificate(Refusal::WrongName {
            found: Box::new(agent("b"))
        })
    );
}

/// Scenario 27: the role is part of the name: an agent is no aggregator of that name.
#[tokio::test]
async fn another_role_is_refused() {
    let authority = authority();
    let mut a = Member::start(&authority, &agent("a")).await;
    let b = Member::start(&authority, &agent("b")).await;
    let claimed = identity("spiffe://test/aggregator/b");
    a.transport.dial(&claimed, &[b.address()]);
    assert_eq!(
        dial_error(&mut a).await,
        DialError::Certificate(Refusal::WrongName {
            found: Box::new(agent("b"))
        })
    );
}

/// Scenario 27: a record of another member is not passed on, and ends the link.
#[tokio::test]
async fn a_record_in_anothers_name_is_refused() {
    let (mut a, mut b) = linked().await;
    a.transport.sync(b.key(), request(&agent("victim")));
    let reason = b
        .wait(|event| match event {
            Event::SyncRequested { from, .. } => panic!("taken from {from}"),
            Event::Refused { reason, .. } => Some(reason),
            _ => None,
        })
        .await;
    assert_eq!(
        reason,
        RefusedReason::Impersonation {
            peer: Box::new(agent("a"))
        }
    );
    let lost = a
        .wait(|event| match event {
            Event::LinkDown { reason, .. } => Some(reason),
            _ => None,
        })
        .await;
    assert_eq!(lost, LinkLoss::ClosedByPeer);
}

fn dated(authority: &Authority, identity: &Identity, from_s: u64, to_s: u64) -> Credentials {
    let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
    let issued = authority
        .issue_between(identity, at(from_s), at(to_s))
        .unwrap();
    Credentials::from_pem(&issued.certificate_pem, &issued.key_pem, &authority.pem())
}

/// Year 2000 and year 2100.
const PAST_S: u64 = 946_684_800;
const FUTURE_S: u64 = 4_102_444_800;

/// An expired certificate opens no link.
#[tokio::test]
async fn an_expired_certificate_is_refused() {
    let authority = authority();
    let mut a = Member::start(&authority, &agent("a")).await;
    let b = agent("b");
    let late = Member::with(config(&b), dated(&authority, &b, PAST_S, PAST_S + 60)).await;
    late.dial(&a);
    assert_eq!(
        refusal(&mut a).await,
        RefusedReason::Certificate(Refusal::Expired)
    );
    a.dial(&late);
    assert_eq!(
        dial_error(&mut a).await,
        DialError::Certificate(Refusal::Expired)
    );
}

/// Scenario 11: to a member whose clock is years in the past every certificate is
/// not valid yet; it must be able to rejoin.
#[tokio::test]
async fn a_certificate_of_the_future_is_taken() {
    let authority = authority();
    let mut a = Member::start(&authority, &agent("a")).await;
    let b = agent("b");
    let early = Member::with(config(&b), dated(&authority, &b, FUTURE_S, FUTURE_S + 60)).await;
    early.dial(&a);
    a.link_up(&b).await;
}

/// A start with another member's certificate fails and names both.
#[tokio::test]
async fn a_start_with_anothers_certificate_fails() {
    let authority = authority();
    let foreign = credentials(&authority, &agent("b"), &[&authority]);
    assert_eq!(foreign.identity().unwrap(), agent("b"));
    let Err(error) = Transport::start(config(&agent("a")), foreign).await else {
        panic!("started under another's name");
    };
    let text = error.to_string();
    assert!(text.contains("node/a") && text.contains("node/b"), "{text}");
    assert!(matches!(
        error,
        StartError::Credentials(CredentialsError::OtherName { .. })
    ));
}

/// Credential files of one member, removed at the end.
struct Files(PathBuf);

impl Files {
    fn new(name: &str) -> Self {
        let folder =
            std::env::temp_dir().join(format!("swimlet-transport-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn write(&self, file: &str, text: &str) {
        // As a projected volume does: the new file takes the old one's place at once.
        let new = self.0.join("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.0.join(file)).unwrap();
    }

    fn issue(&self, authority: &Authority, identity: &Identity) {
        let issued = authority.issue(identity, VALIDITY).unwrap();
        self.write("tls.key", &issued.key_pem);
        self.write("tls.crt", &issued.certificate_pem);
    }

    fn trust(&self, authorities: &[&Authority]) {
        let bundle: String = authorities.iter().map(|one| one.pem()).collect();
        self.write("ca.crt", &bundle);
    }

    fn credentials(&self) -> Credentials {
        let at = |file| self.0.join(file);
        Credentials::from_files(at("tls.crt"), at("tls.key"), at("ca.crt"))
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Scenario 25: the CA is replaced with overlap, then the certificate; new
/// handshakes use them without a restart, and the link that was up stays up.
#[tokio::test]
async fn certificates_and_cas_are_rotated_under_live_links() {
    let (old, new) = (authority(), authority());
    let files = Files::new("rotation");
    files.issue(&old, &agent("a"));
    files.trust(&[&old]);
    let mut a = Member::with(config(&agent("a")), files.credentials()).await;
    let mut b = Member::start(&old, &agent("b")).await;
    a.dial(&b);
    a.link_up(&agent("b")).await;
    b.link_up(&agent("a")).await;

    // A member of the new CA is a stranger until the bundle holds both.
    let c = Member::with(
        config(&agent("c")),
        credentials(&new, &agent("c"), &[&old, &new]),
    )
    .await;
    a.dial(&c);
    let reason = a
        .wait(|event| match event {
            Event::DialFailed { reason, .. } => Some(reason),
            _ => None,
        })
        .await;
    assert_eq!(reason, DialError::Certificate(Refusal::ForeignCa));
    files.trust(&[&old, &new]);
    assert!(a.transport.reload().await.unwrap());
    a.dial(&c);
    a.link_up(&agent("c")).await;

    // A member that trusts the new CA alone takes us once our certificate is new.
    files.issue(&new, &agent("a"));
    assert!(a.transport.reload().await.unwrap());
    assert!(!a.transport.reload().await.unwrap());
    let mut d = Member::start(&new, &agent("d")).await;
    d.dial(&a);
    d.link_up(&agent("a")).await;

    assert_eq!(a.transport.stats().credentials_reloaded, 2);
    assert_eq!(a.transport.stats().links_down, 0);
    a.reaches(&mut b, 1).await;
}

/// Scenario 25: a broken or half-written rotation changes nothing and is counted.
#[tokio::test]
async fn a_broken_rotation_keeps_the_former_credentials() {
    let authority = authority();
    let files = Files::new("broken");
    files.issue(&authority, &agent("a"));
    files.trust(&[&authority]);
    let mut a = Member::with(config(&agent("a")), files.credentials()).await;
    let expiry = a.transport.certificate_expiry();

    files.write("ca.crt", "not a certificate");
    assert!(a.transport.reload().await.is_err());
    files.trust(&[&authority]);
    let other = authority.issue(&agent("a"), VALIDITY * 2).unwrap();
    files.write("tls.crt", &other.certificate_pem);
    let error = a.transport.reload().await.unwrap_err();
    assert!(matches!(error, CredentialsError::KeyPair(_)), "{error}");
    assert_eq!(a.transport.stats().credentials_rejected, 2);
    assert_eq!(a.transport.certificate_expiry(), expiry);
    let b = Member::start(&authority, &agent("b")).await;
    b.dial(&a);
    a.link_up(&agent("b")).await;

    files.write("tls.key", &other.key_pem);
    assert!(a.transport.reload().await.unwrap());
    assert!(a.transport.certificate_expiry() > expiry);
}

/// Scenario 25: changed files are found without being asked to look.
#[tokio::test]
async fn changed_files_are_found_by_themselves() {
    let authority = authority();
    let files = Files::new("watch");
    files.issue(&authority, &agent("a"));
    files.trust(&[&authority]);
    let often = Config {
        reload_interval: Duration::from_millis(20),
        ..config(&agent("a"))
    };
    let a = Member::with(often, files.credentials()).await;
    files.trust(&[&authority, &Authority::new(&cluster("next")).unwrap()]);
    until("the new bundle is in use", || {
        a.transport.stats().credentials_reloaded == 1
    })
    .await;
}

use std::time::Duration;

use http::{Request, StatusCode};
use kube::Client;
use kube::api::{ListParams, Patch, PatchParams};
use kube::client::Body;
use serde_json::json;
use swimlet_standin::{Answer, Matcher, Standin, Verb};
use tokio::time::Instant;

use crate::support::{create_node, nodes, ready, refusal, refused, standin, unknown, within};

fn status_patch() -> Matcher {
    Matcher::any()
        .verb(Verb::Patch)
        .resource("nodes")
        .subresource("status")
}

/// Guards the staging of scenario 22: the kubelet's write lands between the aggregator's read and its patch, every
/// time, and the patch is refused without a trace.
#[tokio::test]
async fn a_held_patch_loses_against_the_write_that_overtook_it() {
    let standin = standin().await;
    let nodes = nodes(&standin);
    let read = create_node(&nodes, "n1").await;
    let mut hold = standin.hold(status_patch().name("n1").user_agent("test"));
    let (params, guarded) = (
        PatchParams::default(),
        Patch::Strategic(unknown(Some(&read))),
    );
    let writing = nodes.patch_status("n1", &params, &guarded);
    let overtaking = async {
        let held = hold.reached().await.expect("the patch arrives");
        assert_eq!((held.name.as_deref(), held.code), (Some("n1"), 0));
        let kubelet = nodes_of(&standin, "kubelet/n1");
        let patch = json!({"status": {"conditions": [
            {"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T02:00:00Z"},
        ]}});
        let patched = kubelet
            .patch_status("n1", &params, &Patch::Strategic(patch))
            .await
            .expect("patches");
        hold.release();
        patched
    };
    let (refused_patch, newest) =
        within("both writes", async { tokio::join!(writing, overtaking) }).await;
    assert_eq!(refusal(refused_patch), refused(409, "Conflict"));
    assert_eq!(nodes.get("n1").await.expect("reads"), newest);
    assert_eq!(ready(&newest).status, "True");
    let codes: Vec<_> = standin
        .requests()
        .into_iter()
        .filter(|r| status_patch().matches(r))
        .map(|r| r.code)
        .collect();
    assert_eq!(
        codes,
        [200, 409],
        "in the order in which they were carried out"
    );
}

/// Guards that a hold holds one request, and none once it was dropped.
#[tokio::test]
async fn a_dropped_hold_holds_nothing() {
    let standin = standin().await;
    let nodes = nodes(&standin);
    create_node(&nodes, "n1").await;
    drop(standin.hold(Matcher::any()));
    within("a read that nobody holds", nodes.get("n1"))
        .await
        .expect("reads");
    let mut hold = standin.hold(Matcher::any().verb(Verb::Get));
    let (held, ()) = within("a read let go", async {
        tokio::join!(nodes.get("n1"), async {
            hold.reached().await.expect("arrives");
            nodes.get("n1").await.expect("the second is not held");
            drop(hold);
        })
    })
    .await;
    held.expect("reads");
}

/// Guards the answers that overload gives, seen as the client sees them: a text body, and Retry-After in a header.
#[tokio::test]
async fn answers_are_given_so_many_times() {
    let standin = standin().await;
    let nodes = nodes(&standin);
    create_node(&nodes, "n1").await;
    standin.answer_next(
        2,
        Matcher::any().verb(Verb::Get),
        Answer::too_many_requests(7),
    );
    let client: Client = standin.client().expect("client");
    let request = Request::get("/api/v1/nodes/n1")
        .body(Body::empty())
        .expect("request");
    let response = client.send(request).await.expect("answers");
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(response.headers()["retry-after"], "7");
    assert_eq!(refusal(nodes.get("n1").await).0, 429);
    nodes
        .get("n1")
        .await
        .expect("the third is the server's own");
    assert_eq!(
        standin
            .requests()
            .iter()
            .filter(|request| request.code == 429)
            .count(),
        2,
        "no hidden retries"
    );

    standin.answer_all(Matcher::any(), Answer::internal_error());
    for _ in 0..3 {
        assert_eq!(
            refusal(nodes.get("n1").await),
            refused(500, "InternalError")
        );
    }
    standin.clear_answers();
    standin.answer_next(
        1,
        status_patch(),
        Answer::forbidden("nodes \"n1\" is forbidden"),
    );
    let patch = Patch::Strategic(unknown(None));
    let patched = nodes
        .patch_status("n1", &PatchParams::default(), &patch)
        .await;
    assert_eq!(refusal(patched), refused(403, "Forbidden"));
    assert_eq!(
        ready(&nodes.get("n1").await.expect("reads")).status,
        "True",
        "a refused write is none"
    );
    standin.answer_next(1, Matcher::any(), Answer::html(StatusCode::BAD_GATEWAY));
    assert_eq!(refusal(nodes.get("n1").await).0, 502);
}

/// Guards the staging of a slow server: every matching request takes its time and is carried out, the others are not
/// kept.
#[tokio::test]
async fn delayed_requests_are_carried_out_after_their_time() {
    const DELAY: Duration = Duration::from_millis(200);
    let standin = standin().await;
    let nodes = nodes(&standin);
    create_node(&nodes, "n1").await;
    standin.delay_all(status_patch(), DELAY);
    let (params, patch) = (PatchParams::default(), Patch::Strategic(unknown(None)));
    for _ in 0..2 {
        let sent = Instant::now();
        nodes
            .patch_status("n1", &params, &patch)
            .await
            .expect("patches");
        assert!(sent.elapsed() >= DELAY);
    }
    assert_eq!(
        ready(&nodes.get("n1").await.expect("reads")).status,
        "Unknown"
    );
    standin.clear_answers();
    // A delay that was not taken back would end the test by its own time.
    standin.delay_all(status_patch().name("n2"), Duration::from_secs(3_600));
    within(
        "a patch of another Node",
        nodes.patch_status("n1", &params, &patch),
    )
    .await
    .expect("patches");
}

/// Guards the outage of scenario 23: connections die, new ones are refused, and afterwards all is where it was.
#[tokio::test]
async fn the_server_goes_away_and_comes_back() {
    let standin = standin().await;
    let nodes = nodes(&standin);
    let before = create_node(&nodes, "n1").await;
    // One request is under way when the connections are severed.
    let mut hold = standin.hold(Matcher::any().verb(Verb::List));
    let params = ListParams::default();
    let (severed, ()) = within("the end of the request under way", async {
        tokio::join!(nodes.list(&params), async {
            hold.reached().await.expect("arrives");
            standin.away().await.expect("goes away");
        })
    })
    .await;
    assert!(
        !matches!(severed, Ok(_) | Err(kube::Error::Api(_))),
        "{severed:?}"
    );
    let connected = tokio::net::TcpStream::connect(standin.address()).await;
    assert_eq!(
        connected.expect_err("nobody listens").kind(),
        std::io::ErrorKind::ConnectionRefused
    );
    assert!(nodes.get("n1").await.is_err());
    standin.away().await.expect("away is away");

    for _ in 0..3 {
        standin.back().await.expect("comes back");
        assert_eq!(nodes.get("n1").await.expect("reads"), before);
        standin.away().await.expect("goes away");
    }
    standin.back().await.expect("comes back");
    drop(hold);
    nodes.list(&params).await.expect("lists");
}

/// Guards that stopping leaves nothing behind: not a listener, and not a request that waits for ever.
#[tokio::test]
async fn shutdown_ends_everything() {
    let standin = standin().await;
    let nodes = nodes(&standin);
    create_node(&nodes, "n1").await;
    let address = standin.address();
    let mut hold = standin.hold(Matcher::any().verb(Verb::Get));
    let reading = tokio::join!(nodes.get("n1"), async {
        hold.reached().await.expect("arrives");
        within("the shutdown", standin.shutdown()).await;
    });
    assert!(reading.0.is_err());
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}

fn nodes_of(standin: &Standin, user_agent: &str) -> kube::Api<k8s_openapi::api::core::v1::Node> {
    kube::Api::all(standin.client_named(user_agent).expect("client"))
}

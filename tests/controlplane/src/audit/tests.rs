use super::*;

const EVENT: &str = r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"RequestResponse","auditID":"1",
"stage":"ResponseComplete","requestURI":"/api/v1/nodes/a/status","verb":"patch","user":{"username":"admin","groups":
["system:masters"]},"sourceIPs":["127.0.0.1"],"userAgent":"rig","objectRef":{"resource":"nodes","name":"a","apiVersion":
"v1","subresource":"status"},"responseStatus":{"metadata":{},"code":409},"requestObject":{"status":{}},
"requestReceivedTimestamp":"2026-01-02T03:04:05.678901Z","stageTimestamp":"2026-01-02T03:04:05.679000Z"}"#;

fn read_text(name: &str, text: &str) -> Result<Vec<AuditEvent>> {
    let path = std::env::temp_dir().join(format!("rig-{name}-{}.log", std::process::id()));
    fs::write(&path, text)?;
    let events = read(&path);
    fs::remove_file(path)?;
    events
}

/// Guards the fields that tests assert on, and a reader that comes while the
/// API server is writing.
#[test]
fn whole_lines_are_read_and_a_half_one_is_left_for_later() {
    let line = EVENT.replace('\n', "");
    let events = read_text("half", &format!("{line}\n{}", &line[..100])).unwrap();
    let [event] = &events[..] else {
        panic!("one whole line, but {events:?}");
    };
    assert_eq!(event.stage, AuditStage::ResponseComplete);
    assert_eq!(event.received.to_string(), "2026-01-02T03:04:05.678901Z");
    assert_eq!(
        (event.user.as_str(), event.verb.as_str()),
        ("admin", "patch")
    );
    assert_eq!(
        (event.resource.as_str(), event.subresource.as_str()),
        ("nodes", "status")
    );
    assert_eq!((event.name.as_str(), event.namespace.as_str()), ("a", ""));
    assert_eq!((event.code, event.request.is_some()), (409, true));
}

/// Guards against a log that silently proves nothing.
#[test]
fn a_line_that_is_no_event_is_an_error() {
    assert!(read_text("bad", "{}\n").is_err());
}

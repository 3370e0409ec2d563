use super::*;

fn answer(code: u16, retry_after: Option<&str>, body: &str) -> Response<Body> {
    let mut answer = Response::builder().status(code);
    if let Some(seconds) = retry_after {
        answer = answer.header(RETRY_AFTER, seconds);
    }
    answer.body(Body::from(body.as_bytes().to_vec())).unwrap()
}

async fn status(answer: Response<Body>) -> Status {
    let answer = with_retry_after(answer).await.unwrap();
    let body = answer.into_body().collect_bytes().await.unwrap();
    serde_json::from_slice(&body).unwrap()
}

fn seconds(status: &Status) -> Option<u32> {
    status
        .details
        .as_ref()
        .map(|details| details.retry_after_seconds)
}

/// Guards the case that kube hides: API priority and fairness refuses in plain text.
#[tokio::test]
async fn a_refusal_in_plain_text_carries_its_header() {
    let text = "Too many requests, please try again later.\n";
    let status = status(answer(429, Some("7"), text)).await;
    assert_eq!((status.code, seconds(&status)), (429, Some(7)));
    assert_eq!(status.message, text.trim());
    assert_eq!(status.reason, "TooManyRequests");
}

#[tokio::test]
async fn a_status_keeps_its_words_and_its_own_time() {
    let json = r#"{"kind":"Status","status":"Failure","message":"slow down","code":429,
        "reason":"TooManyRequests","details":{"name":"a","retryAfterSeconds":3}}"#;
    let status = status(answer(429, None, json)).await;
    assert_eq!(seconds(&status), Some(3));
    assert_eq!(status.message, "slow down");
    assert_eq!(status.details.unwrap().name, "a");
}

#[tokio::test]
async fn an_absurd_time_is_cut() {
    let status = status(answer(503, Some("86400"), "<html>")).await;
    assert_eq!(seconds(&status), Some(120));
}

#[tokio::test]
async fn no_time_is_no_time() {
    assert_eq!(seconds(&status(answer(500, None, "")).await), None);
    // The other form of the header is a date; Kubernetes never sends it.
    let date = "Wed, 21 Oct 2026 07:28:00 GMT";
    assert_eq!(seconds(&status(answer(503, Some(date), "")).await), None);
}

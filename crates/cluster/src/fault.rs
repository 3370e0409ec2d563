//! What can go wrong with a call to the API server, sorted by what to do about it.

use std::time::Duration;

use kube::core::Status;

/// Why a call brought no object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// 409: the object is not what the caller read (or bears another UID); decide anew.
    #[error("the object has changed since it was read")]
    Conflict,
    /// 409 with reason `AlreadyExists`: a create came second.
    #[error("the object exists already")]
    AlreadyExists,
    /// 404: the object is gone.
    #[error("the object does not exist")]
    NotFound,
    /// 410: the resourceVersion is older than what the server remembers; list anew.
    #[error("the resourceVersion is too old, the list must be read anew")]
    Expired,
    /// 403: RBAC or admission says no. Asking again will not help until someone changes it.
    #[error("forbidden: {message}")]
    Forbidden {
        /// The server's words; they name user, verb and resource.
        message: String,
    },
    /// 401: the credential is not accepted.
    #[error("the API server does not accept our credential: {message}")]
    Unauthorized {
        /// The server's words.
        message: String,
    },
    /// 429, or a 5xx: the server is there and wants to be asked later.
    #[error("the API server answered {code}: {message}")]
    Busy {
        /// The HTTP status.
        code: u16,
        /// The server's words, cut to 256 characters.
        message: String,
        /// The server's Retry-After.
        after: Option<Duration>,
    },
    /// Any other refusal: the request itself is wrong for this server.
    #[error("the API server refused the request with {code}: {message}")]
    Refused {
        /// The HTTP status.
        code: u16,
        /// The server's words, cut to 256 characters.
        message: String,
    },
    /// An object that the API server never gives out like this: something between it and us is
    /// broken.
    #[error("the object cannot be used: {0}")]
    Unusable(String),
    /// No answer in time; a write may have happened.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// No connection, or it broke, or the answer could not be read; a write may have happened.
    #[error("no usable answer: {0}")]
    Transport(String),
}

impl Fault {
    /// How long the server asked to be left alone.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Busy { after, .. } => *after,
            _ => None,
        }
    }

    /// Whether a write that ended so may nevertheless have happened.
    ///
    /// A 5xx counts: an API server whose storage timed out answers 500 or 504 for writes that
    /// etcd went on to commit.
    #[must_use]
    pub fn leaves_doubt(&self) -> bool {
        match self {
            Self::Timeout(_) | Self::Transport(_) => true,
            Self::Busy { code, .. } => *code >= 500,
            _ => false,
        }
    }

    /// Whether the same question may be answered differently a little later, without anyone
    /// changing a configuration.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::Timeout(_) | Self::Transport(_) | Self::Busy { .. }
        )
    }

    /// Whether the API server gave an answer at all.
    #[must_use]
    pub fn is_answer(&self) -> bool {
        !matches!(self, Self::Timeout(_) | Self::Transport(_))
    }
}

impl From<kube::Error> for Fault {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::from(*status),
            other => Self::Transport(short(&chain(&other))),
        }
    }
}

impl From<Status> for Fault {
    fn from(status: Status) -> Self {
        let after = status
            .details
            .as_ref()
            .map(|details| details.retry_after_seconds)
            .filter(|seconds| *seconds > 0)
            .map(|seconds| Duration::from_secs(seconds.into()));
        let message = short(&status.message);
        match status.code {
            401 => Self::Unauthorized { message },
            403 => Self::Forbidden { message },
            404 => Self::NotFound,
            409 if status.reason == "AlreadyExists" => Self::AlreadyExists,
            409 => Self::Conflict,
            410 => Self::Expired,
            code @ (429 | 500..) => Self::Busy {
                code,
                message,
                after,
            },
            code => Self::Refused { code, message },
        }
    }
}

/// Waits for a call, for `limit` at most.
pub(crate) async fn timed<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Fault> {
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => answer.map_err(Fault::from),
        Err(_) => Err(Fault::Timeout(limit)),
    }
}

/// An error with its causes: kube's and hyper's outermost words say little.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let words = inner.to_string();
        if !text.contains(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        cause = inner.source();
    }
    text
}

fn short(message: &str) -> String {
    message.chars().take(256).collect()
}

//! From frames to news for the judge.

use std::time::Duration;

use swimlet_protocol::MemberKey;
use swimlet_protocol::frame::{Answer, Claim, Finding as Found, SelfReport, Verified};
use swimlet_verdict::{AnswerSeen, Finding, Input};

pub(super) fn claimed(claim: &Claim) -> Input {
    Input::Claim {
        accuser: claim.accuser,
        subject: claim.subject,
        finding: match claim.finding {
            Found::Missed { silent_ms, .. } => Finding::Missed {
                silent: millis(silent_ms),
            },
            Found::Answered => Finding::Answered,
        },
        age: millis(claim.age_ms),
        health: claim.health,
    }
}

pub(super) fn reported(report: &SelfReport) -> Input {
    Input::Report {
        node: report.node,
        age: millis(report.age_ms),
        kubelet_healthz: report.kubelet_healthz,
        kubelet_port: report.kubelet_port,
        api: report.api,
    }
}

pub(super) fn verified(verifier: MemberKey, answers: Verified) -> Input {
    let seen = |answer: Answer| AnswerSeen {
        subject: answer.subject,
        index: answer.index,
        agent: answer.agent,
        agent_baseline: answer.agent_baseline,
        port: answer.port,
        port_baseline: answer.port_baseline,
    };
    Input::Verified {
        verifier,
        round: answers.round,
        health: answers.health,
        answers: answers.answers.into_iter().map(seen).collect(),
    }
}

fn millis(ms: u32) -> Duration {
    Duration::from_millis(ms.into())
}

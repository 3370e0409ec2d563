use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::bounded::Bounded;
use crate::frame::{
    Ack, AgentAnswer, Answer, Check, Claim, Finding, Leave, News, PortAnswer, Probe, ProbeOutcome,
    ProbeReport, ProbeRequest, SUBJECTS_MAX, SelfReport, Update, Verified, Verify, VerifySubject,
    View,
};
use crate::identity::Role;
use crate::member::{ADDRESSES_MAX, Generation, Incarnation, MemberRecord, MemberState};
use crate::stream::{SYNC_MEMBERS_MAX, SYNC_RANGES, SyncMember, SyncPart, SyncRequest};

fn list<T, const MAX: usize>(items: Vec<T>) -> Bounded<T, MAX> {
    Bounded::fill(&mut items.into_iter())
}

fn largest_record() -> MemberRecord {
    let address = SocketAddr::new(IpAddr::V6(Ipv6Addr::from([0xfd; 16])), 10_270);
    MemberRecord {
        role: Role::Agent,
        name: "n".repeat(NODE_NAME_BYTES_MAX).parse().unwrap(),
        generation: Generation(u64::MAX),
        zone: "z".repeat(63).parse().unwrap(),
        addresses: list(vec![address; ADDRESSES_MAX]),
        kubelet_port: 10_250,
    }
}

fn news() -> News {
    list(vec![
        Update::Joined {
            record: largest_record().into(),
            incarnation: Incarnation(7),
        },
        Update::Changed {
            subject: MemberKey(1),
            generation: Generation(2),
            incarnation: Incarnation(3),
            state: MemberState::Suspect,
            by: MemberKey(4),
        },
    ])
}

const SUBJECT: MemberKey = MemberKey(0xfeed_face_cafe_beef);

fn every_frame() -> Vec<Frame> {
    let mut frames = mesh_frames();
    frames.extend(verification_frames());
    frames
}

fn verification_frames() -> Vec<Frame> {
    let subject = SUBJECT;
    vec![
        Frame::Verify(Verify {
            round: 3,
            subjects: list(vec![VerifySubject {
                subject,
                kubelet: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 10_250),
            }]),
        }),
        Frame::Verified(Verified {
            round: 3,
            health: 0,
            answers: list(vec![Answer {
                index: 0,
                subject,
                agent: AgentAnswer::Silent,
                agent_baseline: true,
                port: PortAnswer::Tls { names_node: false },
                port_baseline: false,
            }]),
        }),
    ]
}

fn mesh_frames() -> Vec<Frame> {
    let subject = SUBJECT;
    vec![
        Frame::Probe(Probe {
            seq: u32::MAX,
            target: Generation(1),
            held: MemberState::Suspect,
            digest: u64::MAX,
            news: news(),
        }),
        Frame::Ack(Ack {
            seq: 1,
            generation: Generation(1),
            incarnation: Incarnation(u16::MAX),
            next_slot_ms: 9_999,
            digest: 0,
            news: News::new(),
        }),
        Frame::ProbeRequest(ProbeRequest {
            seq: 9,
            subject,
            silent_ms: 1_500,
        }),
        Frame::ProbeReport(ProbeReport {
            seq: 9,
            subject,
            outcome: ProbeOutcome::NoStatement,
        }),
        Frame::Gossip(news()),
        Frame::Claims(list(vec![Claim {
            accuser: MemberKey(5),
            subject,
            generation: Generation(6),
            finding: Finding::Missed {
                silent_ms: 4_000,
                indirect: true,
            },
            age_ms: 12,
            health: 8,
        }])),
        Frame::Reports(list(vec![SelfReport {
            node: subject,
            generation: Generation(8),
            age_ms: 1,
            kubelet_healthz: Check::Passing,
            kubelet_port: Check::NeverWorked,
            api: Check::Failing,
        }])),
        Frame::Leave(Leave {
            generation: Generation(1),
            incarnation: Incarnation(2),
        }),
        Frame::View(View {
            alive: 4_999,
            of: 5_000,
        }),
    ]
}

#[test]
fn every_frame_round_trips() {
    for frame in every_frame() {
        let bytes = encode_frame(&frame).unwrap();
        assert_eq!(decode_frame(&bytes), Ok(frame));
    }
}

#[test]
fn stream_messages_round_trip() {
    let request = StreamMessage::SyncRequest(SyncRequest {
        record: largest_record().into(),
        incarnation: Incarnation(1),
        digest: 42,
        ranges: list(vec![u64::MAX; SYNC_RANGES]),
    });
    let bytes = encode_stream(&request).unwrap();
    assert_eq!(decode_stream(&bytes), Ok(request));
}

#[test]
fn the_largest_batches_fit_their_message() {
    let subject = VerifySubject {
        subject: MemberKey(u64::MAX),
        kubelet: SocketAddr::new(IpAddr::V6(Ipv6Addr::from([0xfd; 16])), u16::MAX),
    };
    let verify = Frame::Verify(Verify {
        round: u32::MAX,
        subjects: list(vec![subject; SUBJECTS_MAX]),
    });
    assert!(encode_frame(&verify).is_ok());

    let member = SyncMember {
        record: largest_record().into(),
        incarnation: Incarnation(u16::MAX),
        state: MemberState::Left,
        heard_s: u32::MAX,
    };
    let part = StreamMessage::SyncPart(SyncPart {
        members: list(vec![member; SYNC_MEMBERS_MAX]),
        more: true,
    });
    assert!(encode_stream(&part).is_ok());
}

#[test]
fn a_frame_that_does_not_fit_is_an_error_not_a_cut() {
    let joined = Update::Joined {
        record: largest_record().into(),
        incarnation: Incarnation(0),
    };
    let frame = Frame::Gossip(list(vec![joined; 8]));
    assert_eq!(
        encode_frame(&frame),
        Err(EncodeError {
            max: FRAME_BYTES_MAX
        })
    );
}

#[test]
fn encoded_len_is_what_an_item_adds_to_a_frame() {
    let update = Update::Joined {
        record: largest_record().into(),
        incarnation: Incarnation(7),
    };
    let empty = encode_frame(&Frame::Gossip(News::new())).unwrap().len();
    let one = encode_frame(&Frame::Gossip(list(vec![update.clone()])))
        .unwrap()
        .len();
    assert_eq!(one - empty, encoded_len(&update));
}

/// Scenario 29: truncated, oversized and foreign packets are told apart, so each can be counted.
#[test]
fn each_kind_of_bad_packet_has_its_own_error() {
    assert_eq!(decode_frame(&[]), Err(DecodeError::Empty));
    assert_eq!(
        decode_frame(&[9, 0]),
        Err(DecodeError::Version { found: 9 })
    );
    assert!(matches!(
        decode_frame(&[0; FRAME_BYTES_MAX + 1]),
        Err(DecodeError::TooLong { .. })
    ));
    for frame in every_frame() {
        let bytes = encode_frame(&frame).unwrap();
        for cut in 1..bytes.len() {
            assert!(
                decode_frame(&bytes[..cut]).is_err(),
                "{frame:?} cut at {cut}"
            );
        }
        let mut longer = bytes;
        longer.push(0);
        assert_eq!(
            decode_frame(&longer),
            Err(DecodeError::Trailing { extra: 1 })
        );
    }
}

#[test]
fn an_invalid_name_inside_a_frame_is_refused() {
    let frame = Frame::Gossip(list(vec![Update::Joined {
        record: Arc::new(MemberRecord {
            name: "node-1".parse().unwrap(),
            ..largest_record()
        }),
        incarnation: Incarnation(0),
    }]));
    let mut bytes = encode_frame(&frame).unwrap();
    let at = bytes.windows(6).position(|w| w == b"node-1").unwrap();
    bytes[at] = b'N';
    assert!(matches!(
        decode_frame(&bytes),
        Err(DecodeError::Malformed(_))
    ));
}

#[test]
fn a_list_that_claims_more_than_it_may_hold_is_refused() {
    // Gossip, version 1, with a list length of 65,535.
    let bytes = [WIRE_VERSION, 4, 251, 0xff, 0xff];
    let error = decode_frame(&bytes).unwrap_err().to_string();
    assert!(error.contains("65535 items, 64 at most"), "{error}");
}

proptest! {
    /// Scenario 29: whatever arrives, decoding returns.
    #[test]
    fn garbage_never_panics(mut bytes in proptest::collection::vec(any::<u8>(), 0..1_300)) {
        let _ = decode_frame(&bytes);
        let _ = decode_stream(&bytes);
        if let Some(first) = bytes.first_mut() {
            *first = WIRE_VERSION;
        }
        let _ = decode_frame(&bytes);
        let _ = decode_stream(&bytes);
    }

    /// A valid frame with one byte changed either decodes to something that encodes again, or is refused.
    #[test]
    fn a_flipped_byte_never_panics(which in 0..every_frame().len(), at in any::<prop::sample::Index>(), to in any::<u8>()) {
        let mut bytes = encode_frame(&every_frame()[which]).unwrap();
        let at = at.index(bytes.len());
        bytes[at] = to;
        if let Ok(frame) = decode_frame(&bytes) {
            prop_assert!(encode_frame(&frame).is_ok());
        }
    }
}

// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `decode(encode(x)) == x` for stripe logs and for the messages of agents.

use crate::parity_samples::{decode_log, encode_log};
use crate::samples::STORE;
use backstay_format::agent::{
    Answer, Collected, RecordPart, Request, Seat, StripePlan, Survey, SurveyedGroup,
    SurveyedMember, SurveyedRevision, SurveyedUnread,
};
use backstay_format::limits::{
    COUNTER_MAX, PARITY_MAX, RECORD_BYTES_MAX, REVISIONS_MAX, SEGMENT_BYTES_MAX,
};
use backstay_format::stripe::StripeLogHead;
use backstay_format::{
    CheckpointId, Digest, Extent, Member, Round, SegmentClass, SegmentId, StoreId, Stripe,
    StripeId, StripePiece,
};
use proptest::collection::{btree_map, btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{Index, select};

fn checkpoint() -> impl Strategy<Value = CheckpointId> {
    (0..=COUNTER_MAX, 0..=COUNTER_MAX)
        .prop_map(|(incarnation, number)| CheckpointId::new(incarnation, number))
}

fn store() -> impl Strategy<Value = StoreId> {
    any::<[u8; 16]>().prop_map(StoreId)
}

fn label() -> impl Strategy<Value = String> {
    prop_oneof!["\\PC{0,12}", "[a-z]{100,128}"]
}

/// Any place in a segment; the length may be cut to `most`.
fn extent(most: u32) -> impl Strategy<Value = Extent> {
    let class = select(SegmentClass::ALL.to_vec());
    let place = (
        0..SEGMENT_BYTES_MAX,
        prop_oneof![Just(u32::MAX), any::<u32>()],
    );
    (
        1..=SegmentId::MAX.0,
        class,
        place,
        any::<[u8; 16]>().prop_map(Digest),
    )
        .prop_map(move |(segment, class, (at, length), digest)| {
            let offset_bytes = at - at % class.granule_bytes();
            let room = (SEGMENT_BYTES_MAX - offset_bytes).min(most);
            Extent {
                segment: SegmentId(segment),
                class,
                offset_bytes,
                length_bytes: length % room + 1,
                digest,
            }
        })
}

/// A stripe of a group: the first of `order` are its pieces, the next ones hold parity.
fn stripe(order: &[u8], parity: usize) -> impl Strategy<Value = Stripe> + use<> {
    let (order, most) = (order.to_vec(), order.len() - parity);
    // So short that the longest fits everywhere parity may be.
    let extents = vec(extent(64), order.len());
    (0..=COUNTER_MAX, 1..=most, extents).prop_map(move |(id, pieces, extents)| {
        let place = |(&column, extent): (&u8, &Extent)| StripePiece {
            column,
            extent: *extent,
        };
        let mut all = order.iter().zip(&extents).map(place);
        let mut stripe = Stripe {
            id: StripeId(id),
            pieces: all.by_ref().take(pieces).collect(),
            parity: all.take(parity).collect(),
        };
        let longest = stripe.parity_bytes();
        for piece in &mut stripe.parity {
            piece.extent.length_bytes = longest;
        }
        stripe
    })
}

/// The columns of a group in some order, and its parity.
fn group() -> impl Strategy<Value = (Vec<u8>, usize)> {
    (2..=32_u8, any::<Index>()).prop_flat_map(|(members, parity)| {
        let parity = 1 + parity.index(PARITY_MAX.min(usize::from(members) - 1));
        let columns: Vec<u8> = (0..members).collect();
        (Just(columns).prop_shuffle(), Just(parity))
    })
}

fn round() -> impl Strategy<Value = Round> {
    group().prop_flat_map(|(order, parity)| {
        let members = order.len();
        let carried = || vec(any::<u8>(), 0..40);
        let member = (label(), label(), carried(), carried());
        let parts = (
            btree_map(any::<[u8; 16]>(), member, members..=members),
            btree_set(0..=COUNTER_MAX, 0..5),
            vec(stripe(&order, parity), 0..5),
        );
        let counters = (0..=COUNTER_MAX, 0..=COUNTER_MAX, 0..=COUNTER_MAX);
        (counters, any::<bool>(), checkpoint(), parts).prop_map(
            move |((generation, epoch, round), whole, protected, (found, removed, mut added))| {
                added.sort_by_key(|stripe| stripe.id);
                added.dedup_by_key(|stripe| stripe.id);
                let member = |(store, (node, domain, superblock, root))| Member {
                    store: StoreId(store),
                    node,
                    domain,
                    superblock,
                    root,
                };
                Round {
                    generation,
                    epoch,
                    round,
                    whole,
                    parity: u8::try_from(parity).unwrap_or(u8::MAX),
                    pieces_max: u8::try_from(members - parity).unwrap_or(u8::MAX),
                    asked: u8::try_from(parity).unwrap_or(u8::MAX),
                    protected,
                    members: found.into_iter().map(member).collect(),
                    removed: if whole {
                        Vec::new()
                    } else {
                        removed.into_iter().map(StripeId).collect()
                    },
                    added,
                }
            },
        )
    })
}

fn seats() -> impl Strategy<Value = Vec<Seat>> {
    let seat =
        (store(), label(), label(), "[0-9.:]{0,40}").prop_map(|(store, node, domain, address)| {
            Seat {
                store,
                node,
                domain,
                address,
            }
        });
    vec(seat, 0..=32)
}

fn plan() -> impl Strategy<Value = StripePlan> {
    group()
        .prop_flat_map(|(order, parity)| stripe(&order, parity))
        .prop_map(|stripe| StripePlan {
            id: stripe.id,
            pieces: stripe.pieces,
            holders: stripe.parity.iter().map(|piece| piece.column).collect(),
        })
}

fn surveyed_group() -> impl Strategy<Value = SurveyedGroup> {
    let member = (
        store(),
        label(),
        label(),
        (0..=COUNTER_MAX, 0..=COUNTER_MAX),
        vec(checkpoint(), 0..=REVISIONS_MAX),
    )
        .prop_map(
            |(store, node, domain, (incarnation, sequence), checkpoints)| SurveyedMember {
                store,
                node,
                domain,
                incarnation,
                sequence,
                checkpoints,
            },
        );
    let group = (
        (0..=COUNTER_MAX, 0..=COUNTER_MAX),
        (0..=8_u8, 0..=32_u8),
        checkpoint(),
        vec(member, 0..=4),
    );
    group.prop_map(
        |((epoch, round), (parity, pieces_max), protected, members)| SurveyedGroup {
            epoch,
            round,
            parity,
            pieces_max,
            protected,
            members,
        },
    )
}

fn survey() -> impl Strategy<Value = Survey> {
    let ids = btree_set((0..=COUNTER_MAX, 0..=COUNTER_MAX), 0..=REVISIONS_MAX);
    let ranks = vec(btree_set(0..1000_u32, 0..6), 3);
    let run = (any::<u32>(), 0..=COUNTER_MAX, 0..=COUNTER_MAX);
    let unread = (any::<bool>(), ".{0,20}").prop_map(|(root, why)| SurveyedUnread { root, why });
    let flags = (any::<bool>(), option::of(unread));
    let head = (store(), run, any::<u64>(), flags);
    let groups = (option::of(surveyed_group()), option::of(surveyed_group()));
    (head, ids, ranks, groups).prop_map(
        |(
            (store, (run, incarnation, sequence), length_bytes, (rebuilt, unread)),
            ids,
            ranks,
            (group, former),
        )| {
            let revision = |(at, (number, incarnation)): (usize, (u64, u64))| SurveyedRevision {
                checkpoint: CheckpointId::new(incarnation, number),
                complete: at % 2 == 0,
                world_size: 1000 + u32::try_from(at).unwrap_or(0),
                ranks: ranks[at / 2 % 3].iter().copied().collect(),
            };
            Survey {
                store,
                run,
                incarnation,
                sequence,
                length_bytes,
                rebuilt,
                unread,
                revisions: ids.into_iter().enumerate().map(revision).collect(),
                group,
                former,
            }
        },
    )
}

fn part() -> impl Strategy<Value = RecordPart> {
    (round(), any::<u32>(), any::<bool>()).prop_map(|(round, number, last)| RecordPart {
        round,
        number,
        last,
    })
}

fn room() -> impl Strategy<Value = Request> {
    let bytes = || 0..=RECORD_BYTES_MAX;
    let counters = (0..=COUNTER_MAX, 0..=COUNTER_MAX);
    (counters, bytes(), bytes()).prop_map(|((epoch, round), record_bytes, table_bytes)| {
        Request::MakeRoom {
            epoch,
            round,
            record_bytes,
            table_bytes,
        }
    })
}

fn rebuild() -> impl Strategy<Value = Request> {
    let parts = (
        store(),
        seats(),
        store(),
        (checkpoint(), 0..=COUNTER_MAX),
        any::<(bool, bool)>(),
    );
    parts.prop_map(
        |(lost, seats, authority, (checkpoint, epoch), (own, named))| Request::Rebuild {
            lost,
            seats,
            authority,
            epoch,
            checkpoint,
            own,
            named,
        },
    )
}

/// That a round is over, for the first and for the second time.
fn settle() -> impl Strategy<Value = Request> {
    let parts = (
        any::<bool>(),
        0..=COUNTER_MAX,
        0..=COUNTER_MAX,
        checkpoint(),
    );
    parts.prop_map(|(again, epoch, round, protected)| {
        if again {
            Request::Settled {
                epoch,
                round,
                protected,
            }
        } else {
            Request::Settle {
                epoch,
                round,
                protected,
            }
        }
    })
}

fn request() -> impl Strategy<Value = Request> {
    let counters = || (0..=COUNTER_MAX, 0..=COUNTER_MAX);
    let take = (
        counters(),
        0..32_u8,
        any::<[u8; 16]>(),
        1..=SEGMENT_BYTES_MAX,
        any::<[u8; 16]>(),
    );
    prop_oneof![
        Just(Request::Survey),
        (store(), 0..=COUNTER_MAX, any::<u32>()).prop_map(|(store, epoch, part)| Request::Table {
            store,
            epoch,
            part
        }),
        store().prop_map(|store| Request::SetAside { store }),
        (seats(), 0..=COUNTER_MAX).prop_filter_map("a seat", |(mut seats, epoch)| {
            let from = seats.pop()?;
            Some(Request::Follow { from, epoch })
        }),
        (0..=COUNTER_MAX, 1..=8_u8, 1..=32_u8, seats()).prop_map(
            |(epoch, parity, pieces_max, seats)| Request::Join {
                epoch,
                parity,
                pieces_max,
                seats,
            }
        ),
        (counters(), checkpoint(), 0..=COUNTER_MAX).prop_map(
            |((epoch, round), want, known_from)| Request::Collect {
                epoch,
                round,
                want,
                known_from,
            }
        ),
        room(),
        (counters(), vec(plan(), 0..4)).prop_map(|((epoch, round), stripes)| Request::Encode {
            epoch,
            round,
            stripes,
        }),
        take.prop_map(
            |((epoch, round), from, exposure, length_bytes, digest)| Request::Take {
                epoch,
                round,
                from,
                exposure,
                length_bytes,
                digest: Digest(digest),
            }
        ),
        counters().prop_map(|(epoch, round)| Request::Flush { epoch, round }),
        part().prop_map(Request::Record),
        settle(),
        (0..=COUNTER_MAX, checkpoint(), 0..=i32::MAX, "\\PC{0,1000}").prop_map(
            |(round, checkpoint, kind, text)| Request::Report {
                round,
                checkpoint,
                kind,
                text,
            }
        ),
        rebuild(),
        seats().prop_map(|seats| Request::Repair { seats }),
    ]
}

fn answer() -> impl Strategy<Value = Answer> {
    let carried = || vec(any::<u8>(), 0..400);
    let segments = vec((1..=SegmentId::MAX.0).prop_map(SegmentId), 0..20);
    let collected = (
        carried(),
        carried(),
        vec(extent(SEGMENT_BYTES_MAX), 0..20),
        segments,
    );
    let stripes = group().prop_flat_map(|(order, parity)| vec(stripe(&order, parity), 0..4));
    prop_oneof![
        Just(Answer::Done),
        vec(survey(), 0..3).prop_map(Answer::Surveys),
        part().prop_map(Answer::Table),
        collected.prop_map(|(superblock, root, waiting, dead)| {
            Answer::Collected(Collected {
                superblock,
                root,
                waiting,
                dead,
            })
        }),
        stripes.prop_map(Answer::Encoded),
        extent(SEGMENT_BYTES_MAX).prop_map(Answer::Taken),
        any::<[u64; 3]>().prop_map(|[extents, bytes, lost]| Answer::Rebuilt {
            extents,
            bytes,
            lost,
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn records(value in round()) {
        prop_assert_eq!(Round::decode(&value.encode().unwrap()).unwrap(), value);
    }

    #[test]
    fn bytes_of_records(value in round()) {
        prop_assert_eq!(value.encoded_bytes(), value.encode().unwrap().len() as u64);
    }

    #[test]
    fn logs(generation in 1..=COUNTER_MAX, rounds in vec(round(), 1..4), rest in vec(any::<u8>(), 0..50)) {
        let head = StripeLogHead { store: STORE, generation };
        let mut rounds = rounds;
        for (at, round) in rounds.iter_mut().enumerate() {
            (round.generation, round.whole) = (generation, at == 0);
        }
        rounds[0].removed.clear();
        let mut bytes = encode_log(head, &rounds);
        bytes.extend(rest);
        prop_assert_eq!(decode_log(&bytes).unwrap(), (head, rounds));
        prop_assert!(StripeLogHead::decode(&bytes, StoreId([0; 16])).is_err());
    }

    #[test]
    fn requests(value in request()) {
        prop_assert_eq!(Request::decode(&value.encode().unwrap()).unwrap(), value);
    }

    #[test]
    fn answers(value in answer()) {
        prop_assert_eq!(Answer::decode(&value.encode().unwrap()).unwrap(), value);
    }
}

/// A record of more stripes than one part has is the same when its parts are joined.
#[test]
fn parts_of_a_record_are_the_record() {
    let sample = crate::parity_samples::whole();
    let stripe = |id: u64| Stripe {
        id: StripeId(id),
        ..sample.added[0].clone()
    };
    for (removed, added) in [
        (0, 0),
        (3, 8192),
        (0, 8193),
        ((1 << 20) + 1, 7),
        (5, 20_000),
    ] {
        let record = Round {
            whole: false,
            removed: (0..removed).map(StripeId).collect(),
            added: (1..=added).map(stripe).collect(),
            ..sample.clone()
        };
        let parts: Vec<RecordPart> = (0..)
            .map_while(|number| RecordPart::of(&record, number))
            .collect();
        assert_eq!(parts.iter().filter(|part| part.last).count(), 1);
        assert!(parts.last().is_some_and(|part| part.last));
        let mut parts = parts.into_iter();
        let mut joined = parts.next().unwrap().round;
        for part in parts.clone() {
            part.join(&mut joined).unwrap();
        }
        assert!(joined == record, "{removed} {added}");
        for part in parts {
            let error = part.join(&mut joined).unwrap_err();
            assert_eq!(error.field, "stripe id", "a part that is there already");
        }
    }
    let mut other = sample.clone();
    other.round += 1;
    let part = RecordPart::of(&sample, 0).unwrap();
    assert_eq!(part.join(&mut other).unwrap_err().field, "head");
}

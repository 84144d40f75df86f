// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Purpose: slots are taken and given back, segments are of checkpoints, and ranks are heard.

use super::*;

fn control(slots: u64) -> Control {
    let words = SharedWords::heap(Control::words_for(slots));
    let control = Control::start(words, slots).unwrap();
    control.set_slots(slots);
    control
}

#[test]
fn a_segment_is_of_the_checkpoints_from_its_first_to_its_last() {
    let control = control(2);
    assert!(control.may_use(0, 1) && control.may_use(0, 9), "not known");
    control.set_used(0, 7);
    assert!(control.may_use(0, 1) && control.may_use(0, 7) && !control.may_use(0, 8));
    control.set_unused(1);
    assert!(control.may_use(1, 7), "not known yet");
    control.set_used(1, 7);
    control.set_used(1, 9);
    let used: Vec<u64> = (5..12)
        .filter(|&number| control.may_use(1, number))
        .collect();
    assert_eq!(used, [7, 8, 9]);
    control.set_used(1, u64::MAX);
    assert!(control.may_use(1, 5), "not known any more");
}

/// Filling a store looks at each slot about once, and what is given back is found at once.
#[test]
fn slots_are_taken_from_the_front_without_looking_at_all_of_them() {
    let (control, slots) = (control(4000), 4000);
    let mut looked = 0;
    for wanted in 0..slots {
        let (found, steps) = control.find_slot(Owner::Rank(0));
        assert_eq!(found, Some(wanted));
        looked += steps;
    }
    assert_eq!(looked, slots);
    assert_eq!(control.find_slot(Owner::Node), (None, slots));
    for slot in [3000, 17, 900] {
        control.free_slot(slot);
    }
    let taken = [(); 3].map(|()| control.find_slot(Owner::Node));
    assert_eq!(taken.map(|(slot, _)| slot), [17, 900, 3000].map(Some));
    assert_eq!(taken[0].1, 1);
    assert_eq!(control.take_slot(Owner::Node), None);
}

fn grow_to(control: &Control, slots: u64) -> u64 {
    control.add_slots_up_to(slots);
    control.slots()
}

/// An agent that is killed while it grows the store (it was for one run in ten of a cluster's test).
#[test]
fn a_store_grows_after_the_death_of_who_grew_it() {
    let control = control(8);
    let dead = std::thread::scope(|scope| {
        let dies = || control.growing(|| -> Result<()> { panic!("killed while it grows") });
        scope.spawn(dies).join()
    });
    assert!(dead.is_err());
    for slots in [16, 24] {
        let grown = control.growing(|| Ok(grow_to(&control, slots)));
        assert_eq!(grown.unwrap(), Some(slots));
    }
}

/// Who was slow, not dead, neither shrinks the store nor ends the turn of who took its place.
#[test]
fn who_grows_a_store_late_does_no_harm() {
    let control = control(8);
    let late = control.growing(|| {
        let other = control.growing(|| Ok(grow_to(&control, 24)));
        assert_eq!(other.unwrap(), Some(24));
        let third = control.growing(|| Ok(grow_to(&control, 16)));
        Ok(third)
    });
    assert_eq!(late.unwrap().unwrap().unwrap(), Some(24));
}

//! Table of operations in progress, indexed by a key with a generation.
//!
//! A zero-copy send has two completions, the result and the notification. Notifications come in any
//! order, so this is a table and not a queue. The result of a cancelled linked send announces no
//! notification, and frees the slot, but the kernel sends the notification nevertheless. The
//! generation of a key keeps it from completing the slot's next operation. No I/O here.

/// Key of an operation, as the kernel carries it (`user_data`): generation in the upper half, index
/// in the lower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key(u64);

impl Key {
    fn new(index: usize, generation: u32) -> Self {
        Self(u64::from(generation) << 32 | index as u64)
    }

    pub(super) fn from_user_data(user_data: u64) -> Self {
        Self(user_data)
    }

    pub(super) fn user_data(self) -> u64 {
        self.0
    }

    fn index(self) -> usize {
        self.0 as u32 as usize
    }

    fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// State of a slot.
#[derive(Debug)]
enum State<T> {
    Free,
    /// No completion has come.
    Started(T),
    /// The notification came before the result.
    Notified(T),
    /// The result came, the notification is outstanding: the kernel still reads the memory.
    AwaitingNotification(T),
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    state: State<T>,
}

/// Effect of a result on the operation's memory.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ResultEffect<T> {
    /// The kernel reads it until the notification.
    InUse,
    /// The kernel no longer reads it.
    Released(T),
}

/// Table with a fixed number of slots.
#[derive(Debug)]
pub(super) struct Slots<T> {
    all: Box<[Slot<T>]>,
    free: Vec<usize>,
    borrowed: usize,
}

impl<T> Slots<T> {
    pub(super) fn new(capacity: usize) -> Self {
        let all = (0..capacity).map(|_| Slot { generation: 0, state: State::Free }).collect();
        Self { all, free: (0..capacity).rev().collect(), borrowed: 0 }
    }

    /// Returns the number of operations in the table.
    pub(super) fn len(&self) -> usize {
        self.all.len() - self.free.len()
    }

    /// Returns the number of operations with a result but without their notification.
    pub(super) fn borrowed(&self) -> usize {
        self.borrowed
    }

    /// Inserts an operation; returns it if the table is full.
    pub(super) fn insert(&mut self, value: T) -> Result<Key, T> {
        let Some(index) = self.free.pop() else { return Err(value) };
        let slot = &mut self.all[index];
        slot.state = State::Started(value);
        Ok(Key::new(index, slot.generation))
    }

    /// Returns the operation of `key`.
    pub(super) fn get(&self, key: Key) -> Option<&T> {
        match &self.all.get(key.index()).filter(|slot| slot.generation == key.generation())?.state {
            State::Free => None,
            State::Started(value) | State::Notified(value) | State::AwaitingNotification(value) => {
                Some(value)
            }
        }
    }

    /// Returns the operation of `key` for changes.
    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        match &mut self.all.get_mut(key.index()).filter(|slot| slot.generation == key.generation())?.state {
            State::Free => None,
            State::Started(value) | State::Notified(value) | State::AwaitingNotification(value) => {
                Some(value)
            }
        }
    }

    /// Records a result; `more` means that a notification follows. Returns `None` for a key that is
    /// not in use.
    pub(super) fn record_result(&mut self, key: Key, more: bool) -> Option<ResultEffect<T>> {
        let slot = self.all.get_mut(key.index()).filter(|slot| slot.generation == key.generation())?;
        match std::mem::replace(&mut slot.state, State::Free) {
            State::Started(value) if more => {
                slot.state = State::AwaitingNotification(value);
                self.borrowed += 1;
                Some(ResultEffect::InUse)
            }
            State::Started(value) | State::Notified(value) => {
                self.release(key.index());
                Some(ResultEffect::Released(value))
            }
            other => {
                slot.state = other;
                None
            }
        }
    }

    /// Records a notification. Returns the operation if its result came before. Returns `None` if
    /// the result is outstanding, or for a key that is not in use.
    pub(super) fn record_notification(&mut self, key: Key) -> Option<T> {
        let slot = self.all.get_mut(key.index()).filter(|slot| slot.generation == key.generation())?;
        match std::mem::replace(&mut slot.state, State::Free) {
            State::AwaitingNotification(value) => {
                self.borrowed -= 1;
                self.release(key.index());
                Some(value)
            }
            State::Started(value) => {
                slot.state = State::Notified(value);
                None
            }
            other => {
                slot.state = other;
                None
            }
        }
    }

    /// Iterates over the operations in the table.
    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        self.all.iter().filter_map(|slot| match &slot.state {
            State::Free => None,
            State::Started(value) | State::Notified(value) | State::AwaitingNotification(value) => {
                Some(value)
            }
        })
    }

    fn release(&mut self, index: usize) {
        let slot = &mut self.all[index];
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(index);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn memory_is_in_use_between_result_and_notification() {
        let mut slots = Slots::new(1);
        let key = slots.insert('a').unwrap();
        assert_eq!(slots.insert('b'), Err('b'));
        assert_eq!(slots.record_result(key, true), Some(ResultEffect::InUse));
        assert_eq!((slots.len(), slots.borrowed()), (1, 1));
        assert_eq!(slots.record_notification(key), Some('a'));
        assert_eq!((slots.len(), slots.borrowed()), (0, 0));
    }

    #[test]
    fn result_without_a_notification_releases_the_memory() {
        let mut slots = Slots::new(1);
        let key = slots.insert('a').unwrap();
        assert_eq!(slots.record_result(key, false), Some(ResultEffect::Released('a')));
    }

    #[test]
    fn stale_notification_does_not_affect_the_next_operation() {
        let mut slots = Slots::new(1);
        let cancelled = slots.insert('a').unwrap();
        assert_eq!(slots.record_result(cancelled, false), Some(ResultEffect::Released('a')));
        let next = slots.insert('b').unwrap();
        assert_ne!(cancelled, next);
        assert_eq!(slots.record_notification(cancelled), None);
        assert_eq!(slots.record_result(next, true), Some(ResultEffect::InUse));
        assert_eq!(slots.record_notification(cancelled), None);
        assert_eq!(slots.record_notification(next), Some('b'));
    }

    #[test]
    fn a_notification_before_the_result_waits_for_it() {
        let mut slots = Slots::new(1);
        let key = slots.insert('a').unwrap();
        assert_eq!(slots.record_notification(key), None);
        assert_eq!(slots.record_result(key, true), Some(ResultEffect::Released('a')));
    }

    #[test]
    fn unknown_key_is_ignored() {
        let mut slots = Slots::<char>::new(2);
        for user_data in [0, 1, 2, u64::MAX] {
            assert_eq!(slots.record_result(Key::from_user_data(user_data), false), None);
            assert_eq!(slots.record_notification(Key::from_user_data(user_data)), None);
        }
    }

    proptest! {
        /// In any order of completions, each operation is returned once, and the table is empty at
        /// the end.
        #[test]
        fn each_operation_is_returned_once(order in prop::collection::vec((any::<prop::sample::Index>(), any::<bool>()), 1..200)) {
            const SLOTS: usize = 8;
            let mut slots = Slots::new(SLOTS);
            let (mut next, mut returned) = (0_u32, Vec::new());
            let mut outstanding: Vec<(Key, bool)> = Vec::new();
            for (choice, more) in order {
                if let Ok(key) = slots.insert(next) {
                    next += 1;
                    outstanding.push((key, true));
                    // A cancelled link has no MORE but a notification.
                    outstanding.push((key, false));
                    prop_assert!(slots.get(key).is_some());
                }
                let (key, is_result) = outstanding.swap_remove(choice.index(outstanding.len()));
                if is_result {
                    if let Some(ResultEffect::Released(value)) = slots.record_result(key, more) { returned.push(value); }
                } else if let Some(value) = slots.record_notification(key) {
                    returned.push(value);
                }
                prop_assert!(slots.len() <= SLOTS);
            }
            for (key, is_result) in outstanding {
                if is_result {
                    if let Some(ResultEffect::Released(value)) = slots.record_result(key, true) { returned.push(value); }
                } else if let Some(value) = slots.record_notification(key) {
                    returned.push(value);
                }
            }
            returned.sort_unstable();
            prop_assert_eq!(returned, (0..next).collect::<Vec<_>>());
            prop_assert_eq!((slots.len(), slots.borrowed()), (0, 0));
        }
    }
}

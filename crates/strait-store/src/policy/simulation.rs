//! Cache without bytes, for measuring the policy on traces.

use std::collections::{HashMap, VecDeque};

use super::{Area, Balance, Candidate, Popularity, REQUEST, STAYED_MAX, Selection, weighed_bytes};

/// Divisor of the segment size: a longer object gets a file of its own.
const OWN_FILE_DIVISOR: u64 = 4;

/// Simulated cache. It groups objects in segments as the store does.
#[derive(Debug)]
pub struct Simulation {
    popularity: Popularity,
    /// Agings of the objects' numbers of requests.
    agings: u32,
    capacity_bytes: u64,
    segment_bytes: u64,
    objects: HashMap<u64, Object>,
    window: Queue,
    main: Queue,
    next_file: u64,
    totals: Totals,
}

/// Counts of a simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Requests.
    pub requests: u64,
    /// Requests that were hits.
    pub hits: u64,
    /// Bytes of all requests.
    pub requested_bytes: u64,
    /// Bytes of the hits.
    pub hit_bytes: u64,
    /// Bytes of new objects.
    pub new_bytes: u64,
    /// Bytes that were written again by eviction.
    pub moved_bytes: u64,
}

#[derive(Debug)]
struct Object {
    bytes: u64,
    requests: u8,
    /// Number of its file.
    file: u64,
}

#[derive(Debug, Default)]
struct Queue {
    files: VecDeque<File>,
    /// Segment that is being filled.
    open: File,
    bytes: u64,
}

#[derive(Debug, Default)]
struct File {
    number: u64,
    hashes: Vec<u64>,
    bytes: u64,
}

impl Simulation {
    /// Cache of `capacity_bytes` with segments of `segment_bytes`.
    pub fn new(capacity_bytes: u64, segment_bytes: u64) -> Self {
        Self::with_popularity(Popularity::new(capacity_bytes), capacity_bytes, segment_bytes)
    }

    /// Cache with a fixed balance.
    pub(super) fn with_balance(capacity_bytes: u64, segment_bytes: u64, balance: Balance) -> Self {
        let popularity = Popularity::with_balance(capacity_bytes, balance);
        Self::with_popularity(popularity, capacity_bytes, segment_bytes)
    }

    fn with_popularity(popularity: Popularity, capacity_bytes: u64, segment_bytes: u64) -> Self {
        Self {
            popularity,
            agings: 0,
            capacity_bytes,
            segment_bytes,
            objects: HashMap::new(),
            window: Queue::default(),
            main: Queue { open: File { number: 1, ..File::default() }, ..Queue::default() },
            next_file: 2,
            totals: Totals::default(),
        }
    }

    /// Returns the counts so far.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Requests an object; stores it if it is missing. Returns true if it was a hit.
    pub fn request(&mut self, hash: u64, bytes: u64) -> bool {
        self.totals.requests += 1;
        self.totals.requested_bytes += bytes;
        self.popularity.note_request(hash, bytes);
        if let Some(object) = self.objects.get_mut(&hash) {
            object.requests = object.requests.saturating_add(REQUEST);
            self.totals.hits += 1;
            self.totals.hit_bytes += bytes;
            return true;
        }
        if bytes <= self.capacity_bytes {
            self.totals.new_bytes += bytes;
            let requests = self.popularity.requests_of_dropped(hash).saturating_add(REQUEST);
            self.put(Area::Window, Candidate { object: hash, requests, bytes });
            self.popularity.note_objects(self.objects.len(), self.window.bytes + self.main.bytes);
            self.evict();
        }
        false
    }

    fn queue(&mut self, area: Area) -> &mut Queue {
        match area {
            Area::Window => &mut self.window,
            Area::Main => &mut self.main,
        }
    }

    fn put(&mut self, area: Area, Candidate { object: hash, requests, bytes }: Candidate<u64>) {
        let number = self.next_file;
        let is_own = self.is_own(bytes);
        let segment_bytes = self.segment_bytes;
        let queue = self.queue(area);
        queue.bytes += bytes;
        let file = if is_own {
            queue.files.push_back(File { number, hashes: vec![hash], bytes });
            number
        } else {
            if queue.open.bytes + bytes > segment_bytes {
                let next = File { number, ..File::default() };
                queue.files.push_back(std::mem::replace(&mut queue.open, next));
            }
            queue.open.hashes.push(hash);
            queue.open.bytes += bytes;
            queue.open.number
        };
        self.next_file += 1;
        self.objects.insert(hash, Object { bytes, requests, file });
    }

    fn evict(&mut self) {
        let mut stayed: Vec<Candidate<u64>> = Vec::new();
        while self.window.bytes + self.main.bytes > self.capacity_bytes {
            let wanted = self.popularity.policy().area(self.window.bytes);
            let found =
                [wanted, wanted.other()].map(|area| (!self.queue(area).files.is_empty()).then_some(area));
            let Some(area) = found.into_iter().flatten().next() else { return };
            let Some(file) = self.queue(area).files.pop_front() else { return };
            if area == Area::Window && self.popularity.policy().grows_main() {
                self.window.bytes -= file.bytes;
                self.main.bytes += file.bytes;
                self.main.files.push_back(file);
                continue;
            }
            self.begin_eviction(area, &file);
            let candidates = file.hashes.iter().filter_map(|hash| self.take(*hash, file.number)).collect();
            if self.is_own(file.bytes) && file.hashes.len() == 1 {
                self.evict_own(area, candidates, &mut stayed);
            } else {
                self.evict_segment(area, candidates, file.bytes);
            }
        }
    }

    fn is_own(&self, bytes: u64) -> bool {
        bytes > self.segment_bytes / OWN_FILE_DIVISOR
    }

    /// Counts the bytes of a file that leaves an area.
    fn begin_eviction(&mut self, area: Area, file: &File) {
        if area == Area::Window {
            self.popularity.count_written(file.bytes, self.objects.len());
            let agings = self.popularity.agings();
            if std::mem::replace(&mut self.agings, agings) != agings {
                self.objects.values_mut().for_each(|object| object.requests /= 2);
            }
        }
        self.queue(area).bytes -= file.bytes;
    }

    /// Evicts a segment with `used_bytes`, or moves its objects.
    fn evict_segment(&mut self, area: Area, candidates: Vec<Candidate<u64>>, used_bytes: u64) {
        let bytes = weighed_bytes(used_bytes, self.segment_bytes);
        let Selection { kept, dropped } = self.popularity.policy().select(area, candidates, bytes);
        self.totals.moved_bytes += kept.iter().map(|candidate| candidate.bytes).sum::<u64>();
        for candidate in kept {
            self.put(Area::Main, candidate);
        }
        for candidate in dropped {
            self.drop_object(&candidate);
        }
    }

    /// Evicts a file with one object, or moves it to the end of main. `stayed` has the objects that
    /// stayed during this search for space.
    fn evict_own(&mut self, area: Area, candidates: Vec<Candidate<u64>>, stayed: &mut Vec<Candidate<u64>>) {
        let Some(candidate) = candidates.into_iter().next() else { return };
        if !self.popularity.policy().keeps(area, &candidate) {
            return self.drop_object(&candidate);
        }
        self.put(Area::Main, candidate);
        if area == Area::Main {
            stayed.push(candidate);
        }
        if stayed.len() == STAYED_MAX {
            let least = stayed.drain(..).min_by(|one, other| one.score().total_cmp(&other.score()));
            if let Some(candidate) = least {
                self.drop_own(&candidate);
            }
        }
    }

    /// Drops an object that is alone in a file of main.
    fn drop_own(&mut self, candidate: &Candidate<u64>) {
        let Some(object) = self.objects.remove(&candidate.object) else { return };
        self.main.files.retain(|file| file.number != object.file);
        self.main.bytes -= object.bytes;
        self.drop_object(candidate);
    }

    fn drop_object(&mut self, candidate: &Candidate<u64>) {
        self.popularity.remember([(candidate.object, candidate.requests)]);
    }

    /// Takes an object that is still in that file.
    fn take(&mut self, hash: u64, file: u64) -> Option<Candidate<u64>> {
        let is_here = self.objects.get(&hash).is_some_and(|object| object.file == file);
        let object = if is_here { self.objects.remove(&hash) } else { None }?;
        Some(Candidate { object: hash, requests: object.requests, bytes: object.bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Objects of some sizes fill little of a segment.
    #[test]
    fn search_for_space_ends_with_objects_of_any_size() {
        const SEGMENT_BYTES: u64 = 10_000;
        const CAPACITY_BYTES: u64 = 64 * SEGMENT_BYTES;
        let hash = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for bytes in (500..=SEGMENT_BYTES / 2).step_by(50) {
            let mut simulation = Simulation::new(CAPACITY_BYTES, SEGMENT_BYTES);
            for round in 0..30 {
                (0..100).for_each(|number| _ = simulation.request(hash(number), bytes));
                let scan = 1000 * (round + 1);
                (scan..scan + 400).for_each(|number| _ = simulation.request(hash(number), bytes));
            }
            let kept = simulation.window.bytes + simulation.main.bytes;
            assert!(kept <= CAPACITY_BYTES, "{kept} bytes in objects of {bytes}");
        }
    }
}

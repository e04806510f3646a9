//! State of the picture, and the effect of keys on it. It uses no terminal and no clock.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use serde_json::{Value, json};
use strait_capture::owners::Owner;
use strait_ledger::{Histogram, Report};
use strait_packet::FlowKey;

use super::keyboard::{Code, Key};
use super::reader::Sample;
use super::tally::{Count, Tally};
use crate::Error;
use crate::output::owner_json;

/// Intervals in the curve of the rate.
const HISTORY: usize = 240;
/// Intervals without packets after which a flow is removed.
const IDLE_MAX: u32 = 30;
/// Maximum flows kept between intervals. Above it all idle flows are removed.
const FLOWS_MAX: usize = 1 << 16;
/// Maximum bytes of a typed filter.
const FILTER_MAX: usize = 1024;

/// Sort order of flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    /// Bits in the last interval.
    Bits,
    /// Packets in the last interval.
    Packets,
    /// Bytes since the start.
    Total,
}

/// Action that a key requests from the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reaction {
    None,
    Quit,
    Filter(String),
}

/// Counts of a flow.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flow {
    pub(super) last: Count,
    pub(super) total: Count,
    idle: u32,
}

/// State of the picture.
pub(super) struct Model {
    pub(super) title: String,
    pub(super) filter: String,
    /// A filter that is being typed.
    pub(super) typed: Option<String>,
    /// Error message of the last filter.
    pub(super) message: Option<String>,
    pub(super) paused: bool,
    /// True if the interface is down or has no carrier.
    pub(super) is_down: bool,
    pub(super) help: bool,
    pub(super) sort: Sort,
    pub(super) scroll: usize,
    pub(super) report: Report,
    /// Packets and bits a second in the last interval.
    pub(super) rate: (f64, f64),
    /// Packets and bytes of the last interval.
    all: Count,
    /// Packets a second, interval by interval, the newest last.
    pub(super) history: VecDeque<u64>,
    pub(super) protocols: Vec<(&'static str, Count)>,
    pub(super) delay: Histogram,
    /// Sum of the flows above the limit of distinct flows.
    pub(super) other_flows: Flow,
    seconds: f64,
    flows: HashMap<FlowKey, Flow>,
    owners: HashMap<FlowKey, Arc<Owner>>,
    /// Flows counted during a pause.
    unseen: Tally,
}

impl Model {
    pub(super) fn new(title: String, filter: String) -> Self {
        Self {
            title,
            filter,
            typed: None,
            message: None,
            paused: false,
            is_down: false,
            help: false,
            sort: Sort::Bits,
            scroll: 0,
            report: Report::default(),
            rate: (0.0, 0.0),
            all: Count::default(),
            history: VecDeque::new(),
            protocols: Vec::new(),
            delay: Histogram::new(),
            other_flows: Flow::default(),
            seconds: 1.0,
            flows: HashMap::new(),
            owners: HashMap::new(),
            unseen: Tally::default(),
        }
    }

    /// Merges the sample of an interval. During a pause the sample is kept for the totals, and the
    /// picture does not change.
    pub(super) fn take(&mut self, sample: Sample) {
        self.is_down = sample.is_down;
        if self.paused {
            return self.unseen.add_flows(sample.tally);
        }
        let Sample { tally, report, elapsed, .. } = sample;
        self.seconds = elapsed.as_secs_f64().max(f64::EPSILON);
        self.all = tally.all;
        self.rate = self.per_second(tally.all);
        self.report = report;
        self.delay = tally.delay;
        self.protocols = tally.protocols.into_iter().collect();
        self.protocols.sort_by_key(|(name, count)| (Reverse(count.packets), *name));
        self.history.push_back(self.rate.0 as u64);
        if self.history.len() > HISTORY {
            self.history.pop_front();
        }
        let unseen = std::mem::take(&mut self.unseen);
        self.other_flows.last = tally.other_flows;
        self.other_flows.total.add(tally.other_flows);
        self.other_flows.total.add(unseen.other_flows);
        self.owners.extend(unseen.owners);
        self.owners.extend(tally.owners);
        self.take_flows(tally.flows, unseen.flows);
    }

    fn take_flows(&mut self, flows: HashMap<FlowKey, Count>, unseen: HashMap<FlowKey, Count>) {
        for (key, count) in unseen {
            self.flows.entry(key).or_default().total.add(count);
        }
        for flow in self.flows.values_mut() {
            flow.last = Count::default();
            flow.idle += 1;
        }
        for (key, count) in flows {
            let flow = self.flows.entry(key).or_default();
            (flow.last, flow.idle) = (count, 0);
            flow.total.add(count);
        }
        let limit = if self.flows.len() > FLOWS_MAX { 0 } else { IDLE_MAX };
        self.flows.retain(|_, flow| flow.idle <= limit);
        self.owners.retain(|key, _| self.flows.contains_key(key));
    }

    /// Returns the owner of a flow, if it is known.
    pub(super) fn owner(&self, key: &FlowKey) -> Option<&Owner> {
        self.owners.get(key).map(|owner| &**owner)
    }

    /// Returns the number of distinct flows.
    pub(super) fn flow_count(&self) -> usize {
        self.flows.len()
    }

    /// Returns `count` flows from `first` on, in the selected order. Only these are sorted, as
    /// there may be tens of thousands of flows.
    pub(super) fn sorted_flows(&self, first: usize, count: usize) -> Vec<(&FlowKey, &Flow)> {
        let weight = |flow: &Flow| match self.sort {
            Sort::Bits => (flow.last.bytes, flow.total.bytes),
            Sort::Packets => (flow.last.packets, flow.total.packets),
            Sort::Total => (flow.total.bytes, flow.last.bytes),
        };
        let order = |(key, flow): &(&FlowKey, &Flow)| (Reverse(weight(flow)), **key);
        let mut flows: Vec<_> = self.flows.iter().collect();
        let end = first.saturating_add(count);
        if end < flows.len() {
            flows.select_nth_unstable_by_key(end, order);
            flows.truncate(end);
        }
        flows.sort_unstable_by_key(order);
        flows.into_iter().skip(first).collect()
    }

    /// Converts a count of the last interval to packets and bits a second.
    pub(super) fn per_second(&self, count: Count) -> (f64, f64) {
        (count.packets as f64 / self.seconds, count.bytes as f64 * 8.0 / self.seconds)
    }

    /// Shows the new filter, or the error that `outcome` has.
    pub(super) fn set_filter(&mut self, text: String, outcome: Result<(), Error>) {
        match outcome {
            Ok(()) => (self.filter, self.message) = (text, None),
            Err(error) => self.message = Some(error.to_string()),
        }
    }

    /// Handles a key.
    pub(super) fn press(&mut self, key: Key) -> Reaction {
        if key.code == Code::Char('c') && key.control {
            return Reaction::Quit;
        }
        if self.typed.is_some() {
            return self.type_filter(key.code);
        }
        if self.message.take().is_some() && key.code == Code::Escape {
            return Reaction::None;
        }
        match key.code {
            Code::Char('q') | Code::Escape if !self.help => return Reaction::Quit,
            Code::Char('p' | ' ') => self.paused = !self.paused,
            Code::Char('s') => self.sort = self.sort.next(),
            Code::Char('/' | 'f') => self.typed = Some(self.filter.clone()),
            Code::Char('?' | 'h') => self.help = !self.help,
            Code::Down | Code::Char('j') => {
                self.scroll = (self.scroll + 1).min(self.flows.len().saturating_sub(1));
            }
            Code::Up | Code::Char('k') => self.scroll = self.scroll.saturating_sub(1),
            Code::PageDown => self.scroll = (self.scroll + 10).min(self.flows.len().saturating_sub(1)),
            Code::PageUp => self.scroll = self.scroll.saturating_sub(10),
            Code::Home => self.scroll = 0,
            _ => self.help = false,
        }
        Reaction::None
    }

    fn type_filter(&mut self, key: Code) -> Reaction {
        let Some(text) = &mut self.typed else { return Reaction::None };
        match key {
            Code::Char(letter) if text.len() < FILTER_MAX => text.push(letter),
            Code::Backspace => drop(text.pop()),
            Code::Escape => self.typed = None,
            Code::Enter => return Reaction::Filter(self.typed.take().unwrap_or_default()),
            _ => {}
        }
        Reaction::None
    }

    /// Returns the last interval as one JSON object with at most `flows` flows.
    pub(super) fn json(&self, flows: usize) -> Value {
        let rates = |count: Count| {
            let (packets, bits) = self.per_second(count);
            json!({ "packets_per_second": packets, "bits_per_second": bits })
        };
        let with = |mut object: Value, name: &str, value: Value| {
            object[name] = value;
            object
        };
        let protocols =
            self.protocols.iter().map(|(name, count)| with(rates(*count), "protocol", json!(name)));
        let totals = |flow: &Flow| {
            let object = with(rates(flow.last), "packets", json!(flow.total.packets));
            with(object, "bytes", json!(flow.total.bytes))
        };
        let sorted = self.sorted_flows(0, flows).into_iter();
        let flows = sorted.map(|(key, flow)| {
            let object = with(totals(flow), "flow", json!(key.to_string()));
            match self.owner(key) {
                Some(owner) => with(object, "owner", owner_json(owner)),
                None => object,
            }
        });
        let lost: serde_json::Map<String, Value> = self
            .report
            .capture
            .lost
            .named()
            .into_iter()
            .map(|(name, count)| (name.into(), json!(count)))
            .collect();
        json!({
            "seconds": self.seconds,
            "link": if self.is_down { "down" } else { "up" },
            "packets": self.all.packets,
            "bytes": self.all.bytes,
            "packets_per_second": self.rate.0,
            "bits_per_second": self.rate.1,
            "received": self.report.capture.received,
            "delivered": self.report.capture.delivered,
            "lost": lost,
            "delay": self.delay,
            "protocols": protocols.collect::<Vec<_>>(),
            "flows": flows.collect::<Vec<_>>(),
            "flow_count": self.flow_count(),
            "other_flows": totals(&self.other_flows),
        })
    }
}

impl Sort {
    fn next(self) -> Self {
        match self {
            Self::Bits => Self::Packets,
            Self::Packets => Self::Total,
            Self::Total => Self::Bits,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::top::tally::tests::tally;

    fn sample(tally: Tally, elapsed: Duration) -> Sample {
        Sample { tally, report: Report::default(), elapsed, is_down: false }
    }

    /// Returns a model after an interval of 1000 packets in 8 flows.
    pub(crate) fn model() -> Model {
        let mut model = Model::new("veth0, path v3 (copy)".into(), String::new());
        model.take(sample(tally(1000, 8), Duration::from_millis(500)));
        model
    }

    fn press(model: &mut Model, keys: &str) -> Reaction {
        let code = |letter| if letter == '\n' { Code::Enter } else { Code::Char(letter) };
        keys.chars().map(|letter| model.press(Key::from(code(letter)))).last().unwrap()
    }

    /// Returns the packets of all flows since the start.
    fn total(model: &Model) -> u64 {
        model.flows.values().map(|flow| flow.total.packets).sum()
    }

    #[test]
    fn rates_cover_the_interval_and_totals_cover_all_intervals() {
        let mut model = model();
        assert!((model.rate.0 - 2000.0).abs() < 1e-6);
        model.take(sample(tally(10, 1), Duration::from_secs(1)));
        let flows = model.sorted_flows(0, 100);
        assert!(flows[0].1.last.packets > 0 && flows.len() >= 8);
        assert_eq!(total(&model), 1010);
    }

    #[test]
    fn shown_flows_are_in_the_order_of_all_flows() {
        let mut model = model();
        for _ in 0..3 {
            press(&mut model, "s");
            let all = model.sorted_flows(0, model.flow_count());
            assert_eq!(all.len(), 8);
            for (first, count) in [(0, 3), (2, 3), (5, 3), (6, 9), (9, 1), (3, 0)] {
                let expected: Vec<_> = all.iter().skip(first).take(count).map(|(key, _)| *key).collect();
                let shown = model.sorted_flows(first, count);
                assert_eq!(shown.into_iter().map(|(key, _)| key).collect::<Vec<_>>(), expected);
            }
        }
    }

    #[test]
    fn paused_picture_does_not_change() {
        let mut model = model();
        press(&mut model, "p");
        model.take(sample(tally(9, 1), Duration::from_secs(1)));
        assert!((model.rate.0 - 2000.0).abs() < 1e-6);
        assert_eq!(total(&model), 1000);
    }

    #[test]
    fn totals_include_packets_of_a_pause() {
        let mut model = model();
        press(&mut model, "p");
        model.take(sample(tally(9, 1), Duration::from_secs(1)));
        model.take(sample(tally(9, 1), Duration::from_secs(1)));
        press(&mut model, "p");
        model.take(sample(tally(10, 1), Duration::from_secs(1)));
        assert!((model.rate.0 - 10.0).abs() < 1e-6);
        assert_eq!(total(&model), 1028);
    }

    #[test]
    fn typed_filter_is_kept_only_if_accepted() {
        let mut model = model();
        assert_eq!(press(&mut model, "/tcp q\n"), Reaction::Filter("tcp q".into()));
        model.set_filter("tcp q".into(), Err(Error::Failed("syntax".into())));
        assert_eq!((model.filter.as_str(), model.message.as_deref()), ("", Some("syntax")));
        model.set_filter("tcp".into(), Ok(()));
        assert_eq!((model.filter.as_str(), model.message), ("tcp", None));
    }

    #[test]
    fn escape_closes_a_message_before_it_quits() {
        let mut model = model();
        model.set_filter("tcp q".into(), Err(Error::Failed("syntax".into())));
        assert_eq!((model.press(Code::Escape.into()), &model.message), (Reaction::None, &None));
        assert_eq!(model.press(Code::Escape.into()), Reaction::Quit);
    }

    #[test]
    fn keys_quit_sort_and_scroll() {
        let mut model = model();
        press(&mut model, "s");
        assert_eq!(model.sort, Sort::Packets);
        press(&mut model, "jjk");
        assert_eq!(model.scroll, 1);
        assert_eq!(press(&mut model, "q"), Reaction::Quit);
    }

    #[test]
    fn json_object_has_rate_losses_and_top_flows() {
        let object = model().json(3);
        assert_eq!(object["flows"].as_array().unwrap().len(), 3);
        assert_eq!(object["lost"]["ring_full"], 0);
        assert_eq!(object["protocols"].as_array().unwrap().len(), 2);
        assert_eq!((&object["flow_count"], &object["other_flows"]["packets"]), (&json!(8), &json!(0)));
    }

    #[test]
    fn flows_above_the_limit_are_counted_as_others() {
        let mut model = model();
        let others = |packets| {
            let tally = Tally { other_flows: Count { packets, bytes: 100 * packets }, ..Tally::default() };
            sample(tally, Duration::from_secs(1))
        };
        model.take(others(5));
        press(&mut model, "p");
        model.take(others(6));
        press(&mut model, "p");
        model.take(others(7));
        let other = &model.json(3)["other_flows"];
        assert_eq!((&other["packets"], &other["bytes"]), (&json!(18), &json!(1800)));
        assert_eq!(other["packets_per_second"], 7.0);
    }
}

//! A broker opens the tap for a program without the privilege to load programs.

use std::time::Duration;

use lab::{End, Wire, wait_until};
use strait_capture::broker::Broker;
use strait_capture::serve_broker;
use strait_capture::{Builder, Directions, Error, FilterCompiler, Lane, Path, Session};
use strait_os::process::{CAP_NET_RAW, drop_capabilities_except};
use strait_sys::bpf::{TcxHook, tcx_programs};

use crate::corpus::frames;
use crate::rig::{drain, incoming, send};

const LIMIT: Duration = Duration::from_secs(10);

/// Opens a capture at `end` on a thread with CAP_NET_RAW only, and sets its filter there.
fn open_unprivileged(end: &End, builder: Builder, filter: &str) -> Result<(Session, Vec<Lane>), Error> {
    end.run(|| {
        drop_capabilities_except(&[CAP_NET_RAW]).unwrap();
        let program = FilterCompiler::open(end.name())?.compile(filter)?;
        let mut session = builder.path(Path::Tap).open()?;
        let mut lanes = session.take_lanes();
        session.set_filter(&mut lanes, &program)?;
        Ok((session, lanes))
    })
}

fn programs(end: &End, hook: TcxHook) -> usize {
    let index = end.interface().index;
    end.run(|| tcx_programs(index, hook)).unwrap().len()
}

#[test]
fn broker_opens_a_tap_and_changes_its_filter() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let (broker, socket) = wire.right().run(Broker::pair).unwrap();
    std::thread::scope(|scope| {
        let serving = scope.spawn(|| wire.right().run(|| serve_broker(socket)));
        let Err(error) = open_unprivileged(wire.right(), incoming(), "") else { panic!("it opened") };
        assert!(error.to_string().contains("CAP_BPF"), "{error}");
        let builder = incoming().broker(Some(broker.clone()));
        let (mut session, lanes) = open_unprivileged(wire.right(), builder, "udp").unwrap();
        assert!(session.notes().is_empty(), "the filter runs in the program: {:?}", session.notes());
        assert_eq!(programs(wire.right(), TcxHook::Ingress), 1);
        let before = wire.right().stats().rx_packets;
        send(&wire, &frames());
        wire.await_arrival(before, frames().len() as u64);
        wire.right().run(|| session.stop()).unwrap();
        assert_eq!(programs(wire.right(), TcxHook::Ingress), 0, "stopped");
        let [mut lane] = lanes.try_into().unwrap_or_else(|_| panic!("one lane"));
        let captured = drain(&mut lane);
        let report = session.report(vec![lane.finish().unwrap()]);
        assert_eq!(report.capture.check_balance(), Ok(()), "{report}");
        assert!((1..frames().len()).contains(&captured.len()), "{report}");
        assert_eq!(report.capture.filtered, (frames().len() - captured.len()) as u64, "{report}");
        drop((session, broker));
        assert!(serving.join().unwrap().is_ok(), "it ends with its callers");
    });
}

#[test]
fn directions_change_at_a_broker_and_programs_go_with_their_capture() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let (broker, socket) = wire.right().run(Broker::pair).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| wire.right().run(|| serve_broker(socket)));
        let builder = incoming().broker(Some(broker));
        let (mut session, mut lanes) = open_unprivileged(wire.right(), builder, "").unwrap();
        assert_eq!(programs(wire.right(), TcxHook::Ingress), 1);
        for (directions, expected) in [(Directions::Both, [1, 1]), (Directions::Out, [0, 1])] {
            session.set_directions(&mut lanes, directions).unwrap();
            let attached = [TcxHook::Ingress, TcxHook::Egress].map(|hook| programs(wire.right(), hook));
            assert_eq!(attached, expected, "{directions:?}");
        }
        drop((session, lanes));
        assert!(wait_until(LIMIT, || programs(wire.right(), TcxHook::Egress) == 0));
    });
}

#[test]
fn broker_refuses_a_capture_in_another_namespace() {
    let Some(wire) = Wire::builder().or_skip() else { return };
    let (broker, socket) = wire.right().run(Broker::pair).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| wire.right().run(|| serve_broker(socket)));
        let builder = Session::builder("left").broker(Some(broker));
        let Err(error) = open_unprivileged(wire.left(), builder, "") else { panic!("it opened") };
        assert!(error.to_string().contains("in another network namespace than strait run"), "{error}");
    });
}

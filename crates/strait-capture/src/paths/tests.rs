//! The table of paths, and a path that is one folder and one line in it.

use std::time::{Duration, Instant};

use super::Path;
use super::staged::FRAMES;
use crate::{Frame, Lane, Session};

fn open() -> (Session, Lane) {
    let mut session = Session::builder("lo").path(Path::Staged).snaplen(70).open().unwrap();
    let lane = session.take_lanes().remove(0);
    (session, lane)
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(10)
}

#[test]
fn every_path_is_found_by_its_name() {
    for path in Path::ALL {
        assert_eq!(Path::from_name(path.name()), Some(*path));
        assert!(!path.description().is_empty() && !path.description().ends_with('.'), "{path:?}");
    }
    assert_eq!(Path::from_name("fast"), None);
}

#[test]
fn path_of_one_folder_and_one_table_line_captures() {
    let (mut session, mut lane) = open();
    assert_eq!((session.path(), session.mode(), session.ring()), ("staged", "memory", "3 frames"));
    let mut lengths = Vec::new();
    let mut batch = lane.next_batch_of(1, soon()).unwrap().unwrap();
    let each = |frame: &Frame<'_>| {
        lengths.push(frame.bytes.len());
        Ok::<(), ()>(())
    };
    batch.try_each(usize::MAX, each).unwrap();
    drop(batch);
    let mut batch = lane.next_batch_of(1, soon()).unwrap().unwrap();
    lengths.extend(batch.frames().map(|frame| frame.bytes.len()));
    drop(batch);
    assert_eq!(lengths, [60, 70], "cut to the snaplen");
    assert_eq!(lane.next_batch(soon()).unwrap().unwrap().count(5), 1);
    session.stop().unwrap();
    assert!(lane.next_batch(soon()).unwrap().is_none());
    let report = session.report(vec![lane.finish().unwrap()]);
    assert_eq!(report.capture.delivered, FRAMES.len() as u64);
    assert_eq!(report.capture.check_balance(), Ok(()));
}

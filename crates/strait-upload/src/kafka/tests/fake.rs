//! Cluster for tests: its brokers react as the test says, and it logs what they get.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::kafka::requests::{INIT_PRODUCER_ID, METADATA};
use crate::kafka::wire::{Reader, put_text};

/// Parcel that a broker has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Got {
    pub(super) partition: usize,
    pub(super) producer: i64,
    pub(super) sequence: i32,
    pub(super) records: i32,
}

/// Reaction of a broker to a parcel.
pub(super) enum Reaction {
    /// It answers with this code.
    Code(i16),
    /// It closes the connection.
    Close,
    /// It never answers.
    Hang,
}

type React = Box<dyn FnMut(Got) -> Reaction + Send>;

/// State that the brokers share.
pub(super) struct State {
    pub(super) name: &'static str,
    /// Leader of each partition: -1 if there is none.
    pub(super) leaders: Vec<i32>,
    /// Leaders after the next answer with the cluster.
    pub(super) next_leaders: Option<Vec<i32>>,
    pub(super) react: React,
    /// Number of answers with the cluster.
    pub(super) asked: usize,
    /// Number of identities that were given to producers.
    pub(super) producers: i64,
    /// Number of connections with each broker.
    pub(super) connections: BTreeMap<i32, usize>,
    pub(super) got: Vec<Got>,
}

/// Brokers 1 and 2.
pub(super) struct Fake {
    state: Arc<Mutex<State>>,
    ports: [u16; 2],
}

impl Fake {
    pub(super) async fn start(leaders: &[i32], react: impl FnMut(Got) -> Reaction + Send + 'static) -> Self {
        let state = State {
            name: "a",
            leaders: leaders.to_vec(),
            next_leaders: None,
            react: Box::new(react),
            asked: 0,
            producers: 0,
            connections: BTreeMap::new(),
            got: Vec::new(),
        };
        let state = Arc::new(Mutex::new(state));
        let mut listeners = Vec::new();
        for _ in 0..2 {
            listeners.push(TcpListener::bind("127.0.0.1:0").await.unwrap());
        }
        let ports = [0, 1].map(|at: usize| listeners[at].local_addr().unwrap().port());
        for (broker, listener) in (1..).zip(listeners) {
            let state = Arc::clone(&state);
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    *state.lock().unwrap().connections.entry(broker).or_default() += 1;
                    tokio::spawn(serve(stream, Arc::clone(&state), ports));
                }
            });
        }
        Self { state, ports }
    }

    /// Returns the address of the first broker.
    pub(super) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.ports[0])
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

/// Answers requests until the connection is closed.
async fn serve(mut stream: TcpStream, state: Arc<Mutex<State>>, ports: [u16; 2]) -> Option<()> {
    loop {
        let length = stream.read_i32().await.ok()?;
        let mut request = vec![0; usize::try_from(length).unwrap()];
        stream.read_exact(&mut request).await.ok()?;
        let mut from = Reader::new(&request);
        let key = from.i16().unwrap();
        from.skip(2).unwrap();
        let mut answer = from.i32().unwrap().to_be_bytes().to_vec();
        let _client = from.text().unwrap();
        let reaction = if key == METADATA.key {
            put_cluster(&mut answer, &mut state.lock().unwrap(), ports);
            Reaction::Code(0)
        } else if key == INIT_PRODUCER_ID.key {
            let mut state = state.lock().unwrap();
            state.producers += 1;
            answer.extend([0; 6]);
            answer.extend(state.producers.to_be_bytes());
            answer.extend([0; 2]);
            Reaction::Code(0)
        } else {
            produce(&mut from, &mut answer, &mut state.lock().unwrap())
        };
        match reaction {
            Reaction::Code(_) => {}
            Reaction::Close => return None,
            Reaction::Hang => std::future::pending().await,
        }
        stream.write_i32(answer.len() as i32).await.ok()?;
        stream.write_all(&answer).await.ok()?;
    }
}

fn put_cluster(to: &mut Vec<u8>, state: &mut State, ports: [u16; 2]) {
    state.asked += 1;
    to.extend([0; 4]);
    to.extend(2_i32.to_be_bytes());
    for (broker, port) in (1_i32..).zip(ports) {
        to.extend(broker.to_be_bytes());
        put_text(to, "127.0.0.1");
        to.extend(i32::from(port).to_be_bytes());
        to.extend((-1_i16).to_be_bytes());
    }
    put_text(to, state.name);
    to.extend(1_i32.to_be_bytes());
    to.extend(1_i32.to_be_bytes());
    to.extend([0, 0]);
    put_text(to, "flows");
    to.push(0);
    to.extend((state.leaders.len() as i32).to_be_bytes());
    for (partition, leader) in (0_i32..).zip(&state.leaders) {
        to.extend([0, 0]);
        to.extend(partition.to_be_bytes());
        to.extend(leader.to_be_bytes());
        to.extend([0; 8]);
    }
    if let Some(leaders) = state.next_leaders.take() {
        state.leaders = leaders;
    }
}

/// Appends the results of parcels. Returns the last reaction that prevents an answer, if any.
fn produce(from: &mut Reader<'_>, to: &mut Vec<u8>, state: &mut State) -> Reaction {
    let _transaction = from.text().unwrap();
    from.skip(2 + 4).unwrap();
    let topics = from.all(|from| {
        let _topic = from.text()?;
        from.all(|from| Ok((from.i32()?, from.bytes()?)))
    });
    let parcels = topics.unwrap().pop().unwrap();
    to.extend(1_i32.to_be_bytes());
    put_text(to, "flows");
    to.extend((parcels.len() as i32).to_be_bytes());
    let mut reaction = Reaction::Code(0);
    for (partition, batch) in parcels {
        let number = |at: usize| i32::from_be_bytes(batch[at..at + 4].try_into().unwrap());
        let producer = i64::from_be_bytes(batch[43..51].try_into().unwrap());
        let got = Got { partition: partition as usize, producer, sequence: number(53), records: number(57) };
        state.got.push(got);
        to.extend(partition.to_be_bytes());
        match (state.react)(got) {
            Reaction::Code(code) => to.extend(code.to_be_bytes()),
            other => {
                to.extend([0; 2]);
                reaction = other;
            }
        }
        to.extend([0; 16]);
    }
    to.extend([0; 4]);
    reaction
}

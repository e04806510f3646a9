//! Player of a scenario: its actors and their steps.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::check::{all, check, expected_bytes};
use super::message::{Body, Framing, Head, Parsed, body};
use super::script::{Scenario, Step};
use super::steps::{
    ConnectionChoice, Expected, Extent, Mode, chunks, is_short, last_chunk, message, usual_of_response,
};
use super::value::{Variables, number, shown};
use super::world::{Connection, End, Side, State, World};
use super::{BEGIN_SECONDS, Failure, Setup, Start, Subject};

/// Time limit of the step `asks ... until`.
const ASK_LIMIT: Duration = Duration::from_secs(10);
/// Host of requests, unless the step sets one.
const HOST: &str = "www.example";
/// Path of the step `sync`.
const SYNC_PATH: &str = "/.sync";

/// Plays a scenario.
pub(super) fn run(scenario: &Scenario, start: Start<'_>) -> Result<(), Failure> {
    let last = scenario.steps.last().map_or(0, |step| step.line);
    let at_end = |what| Failure { line: last, what: format!("at the end: {what}") };
    let mut play = Play::new(start).map_err(at_end)?;
    let played = scenario.steps.iter().try_for_each(|step| {
        play.step(step).map_err(|what| Failure { line: step.line, what: format!("{what}{}", play.unread()) })
    });
    let ended = play.end(played.is_ok());
    played.and_then(|()| ended.map_err(at_end))
}

/// Actor with a connection.
struct Actor {
    id: usize,
    /// Methods of the unanswered requests.
    methods: VecDeque<String>,
    /// Head of the body that is being read.
    head: Option<(Head, Framing)>,
}

struct Play<'a> {
    start: Start<'a>,
    world: Arc<World>,
    origin: SocketAddr,
    directory: tempfile::TempDir,
    subject: Option<Box<dyn Subject>>,
    config: String,
    is_forward: bool,
    now: u64,
    actors: HashMap<String, Actor>,
    /// Connections to the origin that have carried a request.
    used: HashSet<usize>,
}

type Result<T = (), E = String> = std::result::Result<T, E>;

impl<'a> Play<'a> {
    fn new(start: Start<'a>) -> Result<Self> {
        let world = Arc::new(World::default());
        Ok(Self {
            start,
            origin: world.listen()?,
            world,
            directory: tempfile::tempdir().map_err(|error| format!("make a directory: {error}"))?,
            subject: None,
            config: String::new(),
            is_forward: false,
            now: BEGIN_SECONDS,
            actors: HashMap::new(),
            used: HashSet::new(),
        })
    }

    fn step(&mut self, step: &Step) -> Result {
        match step.words()[..] {
            ["config"] => self.configure(step),
            ["forward"] => {
                self.is_forward = true;
                Ok(())
            }
            ["clock", by] => {
                let seconds = number(by.strip_prefix('+').ok_or("give the clock +SECONDS")?)?;
                self.now += seconds;
                self.subject()?.advance(seconds);
                Ok(())
            }
            ["sync"] => self.sync(),
            ["proxy", "restarts"] => {
                self.stop();
                self.subject().map(|_| ())
            }
            ["origin", "refuses"] => self.world.refuse(self.origin),
            [party, verb, ref rest @ ..] if party.starts_with('o') => {
                self.origin_step(party, verb, rest, step)
            }
            [party, verb, ref rest @ ..] => self.client_step(party, verb, rest, step),
            _ => Err("no step".into()),
        }
    }

    fn configure(&mut self, step: &Step) -> Result {
        for (_, line) in &step.below {
            let line = line.strip_prefix('|').ok_or("begin a line of configuration with |")?;
            self.config.push_str(&self.variables().replace(line.trim()));
            self.config.push('\n');
        }
        Ok(())
    }

    /// Returns the proxy, starting it on first use.
    fn subject(&mut self) -> Result<&dyn Subject> {
        if self.subject.is_none() {
            let setup = Setup {
                config: &self.config,
                origin: self.origin,
                is_forward: self.is_forward,
                directory: self.directory.path(),
                now: self.now,
            };
            self.subject =
                Some((self.start)(&setup).map_err(|error| format!("the proxy does not start: {error}"))?);
        }
        self.subject.as_deref().ok_or_else(|| "no proxy".to_owned())
    }

    fn variables(&self) -> Variables {
        Variables {
            origin: self.origin.to_string(),
            port: self.origin.port(),
            proxy: self.subject.as_ref().map(|subject| subject.address().to_string()).unwrap_or_default(),
            now: self.now,
        }
    }

    fn client_step(&mut self, party: &str, verb: &str, rest: &[&str], step: &Step) -> Result {
        match (verb, rest) {
            ("connects", []) => self.connect(party, false),
            ("connects", ["slowly"]) => self.connect(party, true),
            ("asks", [method, target, "until", rest @ ..]) => self.ask(method, target, rest, step),
            ("sends", [method, target, rest @ ..]) if *method != "last" => {
                if !self.actors.contains_key(party) {
                    self.connect(party, false)?;
                }
                self.request(party, method, target, rest, step)
            }
            ("sends", ["raw", ..]) if !self.actors.contains_key(party) => {
                self.connect(party, false)?;
                self.common_step(party, verb, rest, step)
            }
            ("gets", [status, ..]) if number(status).is_ok() => self.response(party, rest, step),
            _ => self.common_step(party, verb, rest, step),
        }
    }

    fn origin_step(&mut self, party: &str, verb: &str, rest: &[&str], step: &Step) -> Result {
        match (verb, rest) {
            ("accepts", []) => {
                let used = self.used.clone();
                let found = self.world.wait(|state| {
                    let fresh =
                        |id: &usize| state.connections[*id].side == Side::Origin && !used.contains(id);
                    (0..state.connections.len()).find(fresh)
                });
                self.bind(party, found.ok_or("no connection arrived")?);
                Ok(())
            }
            ("sends", [status, words @ ..]) if number(status).is_ok() => {
                self.respond(party, status, words, step)
            }
            ("gets", ["data" | "closed" | "rest", ..]) => self.common_step(party, verb, rest, step),
            ("gets", _) => self.take_request(party, rest, step),
            _ => self.common_step(party, verb, rest, step),
        }
    }

    /// Steps of both sides.
    fn common_step(&mut self, party: &str, verb: &str, rest: &[&str], step: &Step) -> Result {
        let id = self.actors.get(party).ok_or_else(|| format!("{party} has no connection"))?.id;
        let variables = self.variables();
        let send = |bytes| self.world.with(|state| state.connections[id].send(bytes));
        match (verb, rest) {
            ("sends", ["raw" | "data"]) => {
                send(expected_bytes(&step.below, &variables)?.ok_or("nothing to send")?);
            }
            ("sends", ["chunks"]) => send(chunks(&step.below, &variables)?),
            ("sends", ["last", "chunk"]) => send(last_chunk(&step.below, &variables)),
            ("closes", []) => self.ends(id, Connection::close)?,
            ("shuts", []) => self.ends(id, Connection::shut)?,
            ("resets", []) => self.ends(id, Connection::reset)?,
            ("pauses", []) => self.world.with(|state| state.connections[id].is_paused = true),
            ("resumes", []) => self.world.with(|state| state.connections[id].is_paused = false),
            ("has", ["sent", "everything"]) => {
                let sent = self.world.wait(|state| (state.connections[id].unsent == 0).then_some(()));
                sent.ok_or_else(|| {
                    format!(
                        "the peer has not read {} bytes",
                        self.world.with(|state| state.connections[id].unsent)
                    )
                })?;
            }
            ("gets", ["data"]) => {
                let expected = expected_bytes(&step.below, &variables)?
                    .ok_or("a step `gets data` without body lines")?;
                self.take_data(id, &expected)?;
            }
            ("gets", ["closed"]) => self.closed(id)?,
            ("gets", ["rest"]) => self.rest(party, Extent::Whole, step)?,
            ("gets", ["rest", "cut"]) => self.rest(party, Extent::Cut, step)?,
            _ => return Err("unknown step".into()),
        }
        Ok(())
    }

    fn bind(&mut self, party: &str, id: usize) {
        self.used.insert(id);
        self.actors.insert(party.to_owned(), Actor { id, methods: VecDeque::new(), head: None });
    }

    fn connect(&mut self, party: &str, is_slow: bool) -> Result {
        let address = self.subject()?.address();
        let id = self.world.connect(address, is_slow)?;
        self.actors.insert(party.to_owned(), Actor { id, methods: VecDeque::new(), head: None });
        Ok(())
    }

    fn actor(&mut self, party: &str) -> Result<&mut Actor> {
        self.actors.get_mut(party).ok_or_else(|| format!("{party} has no connection"))
    }

    fn request(&mut self, party: &str, method: &str, target: &str, rest: &[&str], step: &Step) -> Result {
        let variables = self.variables();
        let bytes = self.request_bytes(method, target, rest, step, &variables)?;
        let actor = self.actor(party)?;
        actor.methods.push_back(method.to_owned());
        let id = actor.id;
        self.world.with(|state| state.connections[id].send(bytes));
        Ok(())
    }

    fn request_bytes(
        &self,
        method: &str,
        target: &str,
        rest: &[&str],
        step: &Step,
        variables: &Variables,
    ) -> Result<Vec<u8>> {
        let version = rest.iter().find(|word| word.starts_with("HTTP/")).unwrap_or(&"HTTP/1.1");
        let mode = rest.iter().find_map(|word| Mode::of(word)).unwrap_or(Mode::Length);
        let host = if self.is_forward { variables.origin.clone() } else { HOST.to_owned() };
        let first = format!("{method} {} {version}", variables.replace(target));
        message(&first, &[("Host", host)], &step.below, mode, variables)
    }

    fn respond(&mut self, party: &str, status: &str, words: &[&str], step: &Step) -> Result {
        let version = words.iter().find(|word| word.starts_with("HTTP/")).unwrap_or(&"HTTP/1.1");
        let mode = words.iter().find_map(|word| Mode::of(word)).unwrap_or(Mode::Length);
        let variables = self.variables();
        let usual = usual_of_response(&variables, !status.starts_with('1'));
        let bytes = message(&format!("{version} {status} Said"), &usual, &step.below, mode, &variables)?;
        let id = self.actor(party)?.id;
        self.world.with(|state| {
            let connection = &mut state.connections[id];
            connection.send(bytes);
            if mode == Mode::Close {
                connection.close();
            }
        });
        Ok(())
    }

    /// Checks a response to the oldest unanswered request.
    fn response(&mut self, party: &str, words: &[&str], step: &Step) -> Result {
        let expected = Expected::of(words)?;
        let actor = self.actor(party)?;
        let id = actor.id;
        let is_final = !expected.first.starts_with('1') || expected.first == "101";
        let first = if is_final { actor.methods.pop_front() } else { actor.methods.front().cloned() };
        let method = expected.method.clone().or(first).unwrap_or_else(|| "GET".to_owned());
        let head = self.take_head(id)?;
        let framing = head.framing(Some(&method))?;
        if head.status()?.to_string() != expected.first {
            let received = self.world.with(|state| shown(&state.connections[id].received));
            return Err(format!("{}; after it {received}", all(&head)));
        }
        self.message(party, head, framing, expected.extent, step)
    }

    fn take_request(&mut self, party: &str, words: &[&str], step: &Step) -> Result {
        let expected = Expected::of(words)?;
        let first = self.variables().replace(&expected.first);
        let id = self.find_request(party, &first, expected.connection)?;
        self.bind(party, id);
        let head = self.take_head(id)?;
        let framing = head.framing(None)?;
        self.message(party, head, framing, expected.extent, step)
    }

    /// Finds the connection with a matching request: first that of `party`, then unassigned ones,
    /// then the others'.
    fn find_request(&self, party: &str, first: &str, choice: ConnectionChoice) -> Result<usize> {
        let own = self.actors.get(party).map(|actor| actor.id);
        let found = self.world.wait(|state| {
            let with_it = (0..state.connections.len()).filter(|id| {
                let connection = &state.connections[*id];
                let is_sync = connection
                    .received
                    .strip_prefix(first.as_bytes())
                    .is_some_and(|rest| rest.starts_with(b" ") || rest.starts_with(b"\r"));
                connection.side == Side::Origin && !connection.is_closed_here && is_sync
            });
            let rank = |id: &usize| match choice {
                ConnectionChoice::Any if Some(*id) == own => Some(0),
                ConnectionChoice::Any => Some(1 + u8::from(self.used.contains(id))),
                ConnectionChoice::New => (!self.used.contains(id)).then_some(0),
                ConnectionChoice::Same => (Some(*id) == own).then_some(0),
            };
            with_it.filter(|id| rank(id).is_some()).min_by_key(rank)
        });
        found.ok_or_else(|| "no such request arrived".to_owned())
    }

    /// Checks the head, and the body as far as `extent` requires.
    fn message(&mut self, party: &str, head: Head, framing: Framing, extent: Extent, step: &Step) -> Result {
        if extent == Extent::Head {
            check(&head, None, &step.below, &self.variables())?;
            self.actor(party)?.head = Some((head, framing));
            return Ok(());
        }
        let id = self.actor(party)?.id;
        let body = self
            .take_body(id, framing, extent == Extent::Cut)
            .map_err(|what| format!("{what}; {}", all(&head)))?;
        check(&head, Some(&body), &step.below, &self.variables())
    }

    /// Checks the rest of a body after its head was checked by an earlier step.
    fn rest(&mut self, party: &str, extent: Extent, step: &Step) -> Result {
        let actor = self.actor(party)?;
        let id = actor.id;
        let (head, framing) = actor.head.take().ok_or("`gets rest` without an earlier `gets ... head`")?;
        let body = self.take_body(id, framing, extent == Extent::Cut)?;
        check(&head, Some(&body), &step.below, &self.variables())
    }

    fn take_head(&self, id: usize) -> Result<Head> {
        let taken = self.world.wait(|state| {
            let connection = &mut state.connections[id];
            match Head::read(&connection.received) {
                Ok(Some((head, len))) => {
                    connection.received.drain(..len);
                    Some(Ok(head))
                }
                Ok(None) => connection.end.clone().map(|end| Err(format!("the connection ended: {end:?}"))),
                Err(what) => Some(Err(what)),
            }
        });
        taken.unwrap_or_else(|| Err("no message arrived, or only a part of it".to_owned()))
    }

    fn take_body(&self, id: usize, framing: Framing, is_cut: bool) -> Result<Body> {
        let taken = self.world.wait(|state| {
            let connection = &mut state.connections[id];
            let parsed = match body(&connection.received, framing, connection.end == Some(End::Closed)) {
                Ok(parsed) => parsed,
                Err(what) => return Some(Err(what)),
            };
            let (body, is_whole) = match parsed {
                Parsed::Whole(body) => (body, true),
                Parsed::Part(body) => (body, false),
            };
            if !is_whole && connection.end.is_none() {
                return None;
            }
            connection.received.drain(..body.used);
            Some(match (is_whole, is_cut) {
                (true, false) | (false, true) => Ok(body),
                (true, true) if !is_short(framing) => {
                    Err("a cut body cannot be distinguished: the end of the connection ends it".to_owned())
                }
                (true, true) => Err(format!("the body is complete: {}", shown(&body.bytes))),
                (false, false) => {
                    Err(format!("the connection ended ({:?}) after {}", connection.end, shown(&body.bytes)))
                }
            })
        });
        taken.unwrap_or_else(|| Err("the body did not end".to_owned()))
    }

    /// Checks the next bytes, without framing.
    fn take_data(&self, id: usize, expected: &[u8]) -> Result {
        let taken = self.world.wait(|state| {
            let connection = &mut state.connections[id];
            let is_enough = connection.received.len() >= expected.len();
            is_enough.then(|| connection.received.drain(..expected.len()).collect::<Vec<_>>())
        });
        match taken {
            Some(taken) if taken == expected => Ok(()),
            Some(taken) => Err(format!("other bytes arrived: {}", shown(&taken))),
            None => Err("fewer bytes arrived".to_owned()),
        }
    }

    /// Ends a connection or half of it, and waits until this is done.
    fn ends(&self, id: usize, end: impl Fn(&mut Connection)) -> Result {
        self.world.with(|state| end(&mut state.connections[id]));
        let ended = self.world.wait(|state| (state.connections[id].pending_closes == 0).then_some(()));
        ended.ok_or_else(|| "earlier bytes were not read".to_owned())
    }

    fn closed(&self, id: usize) -> Result {
        self.world
            .wait(|state| {
                let connection = &state.connections[id];
                (connection.end.is_some() && connection.received.is_empty()).then_some(())
            })
            .ok_or_else(|| "the connection is open, or more bytes arrived on it".to_owned())
    }

    /// Repeats a request on new connections until the response is as expected: for asynchronous
    /// work of the proxy.
    fn ask(&mut self, method: &str, target: &str, words: &[&str], step: &Step) -> Result {
        let (request, expected): (Vec<_>, Vec<_>) =
            step.below.iter().cloned().partition(|(_, line)| line.starts_with('>'));
        let request = request.into_iter().map(|(at, line)| (at, line[1..].trim().to_owned()));
        let request = Step { line: step.line, text: step.text.clone(), below: request.collect() };
        let expected = Step { line: step.line, text: step.text.clone(), below: expected };
        let mut result = Ok(());
        let is_expected = crate::wait_until(ASK_LIMIT, || {
            result = self
                .connect("asking", false)
                .and_then(|()| self.request("asking", method, target, &[], &request));
            result = result.clone().and_then(|()| self.response("asking", words, &expected));
            let id = self.actors.get("asking").map(|actor| actor.id);
            self.world.with(|state| id.into_iter().for_each(|id| state.connections[id].close()));
            result.is_ok()
        });
        if is_expected { Ok(()) } else { result }
    }

    /// Waits until the proxy has read all earlier bytes: until it forwards a later request.
    fn sync(&mut self) -> Result {
        let is_sent = |state: &mut State| state.connections.iter().all(|connection| connection.unsent == 0);
        let sent = self.world.wait(|state| is_sent(state).then_some(()));
        sent.ok_or("earlier bytes were not read")?;
        let target =
            if self.is_forward { format!("http://{}{SYNC_PATH}", self.origin) } else { SYNC_PATH.to_owned() };
        let fields = [(0, "Connection: close".to_owned()), (0, "Cache-Control: no-store".to_owned())];
        let step = Step { line: 0, text: String::new(), below: fields.to_vec() };
        self.connect("syncing", false)?;
        self.request("syncing", "GET", &target, &[], &step)?;
        let found = self.world.wait(|state| {
            let is_sync = |id: &usize| state.connections[*id].received.starts_with(b"GET /.sync ");
            (0..state.connections.len()).find(is_sync)
        });
        let id = found.ok_or("the request of sync did not arrive at the origin")?;
        self.used.insert(id);
        self.take_head(id)?;
        self.world.with(|state| {
            let answer = "HTTP/1.1 200 Said\r\nCache-Control: no-store\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
            state.connections[id].send(answer.into());
            state.connections[id].close();
        });
        self.response("syncing", &["200"], &Step { line: 0, text: String::new(), below: Vec::new() })
    }

    fn stop(&mut self) {
        if let Some(subject) = self.subject.take() {
            subject.stop();
        }
    }

    /// Describes unexpected bytes, for a message.
    fn unread(&self) -> String {
        self.world.with(|state| {
            let is_unread =
                |connection: &&Connection| !connection.is_closed_here && !connection.received.is_empty();
            let unread = state.connections.iter().filter(is_unread);
            let descriptions = unread.map(|connection| {
                format!("; unread by a {:?}: {}", connection.side, shown(&connection.received))
            });
            descriptions.collect::<Vec<_>>().concat()
        })
    }

    /// Ends all connections. If all steps passed, unexpected bytes are a failure.
    fn end(mut self, is_passed: bool) -> Result {
        self.stop();
        self.world
            .with(|state| state.connections.iter_mut().for_each(|connection| connection.is_paused = false));
        let ended = !is_passed
            || self.world.wait(|state| {
                let is_open =
                    |connection: &Connection| connection.end.is_none() && !connection.is_closed_here;
                (!state.connections.iter().any(is_open)).then_some(())
            }) == Some(());
        let unread = self.unread();
        self.world.close(self.origin);
        self.world.with(|state| state.connections.iter_mut().for_each(Connection::close));
        match (is_passed, ended, unread.is_empty()) {
            (true, false, _) => Err("the proxy has stopped, but connections are still open".to_owned()),
            (true, true, false) => Err(format!("more bytes arrived{unread}")),
            _ => Ok(()),
        }
    }
}

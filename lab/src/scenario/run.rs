//! Player of a scenario: its actors and their steps.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::check::{all, check, wanted_bytes};
use super::message::{Body, Came, Framing, Head, body};
use super::script::{Scenario, Step};
use super::steps::{Awaited, Extent, Mode, Place, chunks, is_short, last_chunk, message, usual_of_response};
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
                let seconds = number(by.strip_prefix('+').ok_or("a clock goes on by +SECONDS")?)?;
                self.now += seconds;
                self.subject()?.advance(seconds);
                Ok(())
            }
            ["sync"] => self.sync(),
            ["proxy", "restarts"] => {
                self.stop();
                self.subject().map(|_| ())
            }
            ["origin", "refuses"] => {
                self.world.refuse(self.origin);
                Ok(())
            }
            [who, verb, ref rest @ ..] if who.starts_with('o') => self.origin_step(who, verb, rest, step),
            [who, verb, ref rest @ ..] => self.client_step(who, verb, rest, step),
            _ => Err("no step".into()),
        }
    }

    fn configure(&mut self, step: &Step) -> Result {
        for (_, line) in &step.below {
            let line = line.strip_prefix('|').ok_or("a line of configuration begins with |")?;
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

    fn client_step(&mut self, who: &str, verb: &str, rest: &[&str], step: &Step) -> Result {
        match (verb, rest) {
            ("connects", []) => self.connect(who, false),
            ("connects", ["slowly"]) => self.connect(who, true),
            ("asks", [method, target, "until", rest @ ..]) => self.ask(method, target, rest, step),
            ("sends", [method, target, rest @ ..]) if *method != "last" => {
                if !self.actors.contains_key(who) {
                    self.connect(who, false)?;
                }
                self.request(who, method, target, rest, step)
            }
            ("sends", ["raw", ..]) if !self.actors.contains_key(who) => {
                self.connect(who, false)?;
                self.common_step(who, verb, rest, step)
            }
            ("gets", [status, ..]) if number(status).is_ok() => self.response(who, rest, step),
            _ => self.common_step(who, verb, rest, step),
        }
    }

    fn origin_step(&mut self, who: &str, verb: &str, rest: &[&str], step: &Step) -> Result {
        match (verb, rest) {
            ("accepts", []) => {
                let used = self.used.clone();
                let found = self.world.wait(|state| {
                    let fresh =
                        |id: &usize| state.connections[*id].side == Side::Origin && !used.contains(id);
                    (0..state.connections.len()).find(fresh)
                });
                self.bind(who, found.ok_or("no connection came")?);
                Ok(())
            }
            ("sends", [status, words @ ..]) if number(status).is_ok() => {
                self.respond(who, status, words, step)
            }
            ("gets", ["data" | "closed" | "rest", ..]) => self.common_step(who, verb, rest, step),
            ("gets", _) => self.take_request(who, rest, step),
            _ => self.common_step(who, verb, rest, step),
        }
    }

    /// Steps of both sides.
    fn common_step(&mut self, who: &str, verb: &str, rest: &[&str], step: &Step) -> Result {
        let id = self.actors.get(who).ok_or_else(|| format!("{who} has no connection"))?.id;
        let variables = self.variables();
        let send = |bytes| self.world.with(|state| state.connections[id].send(bytes));
        match (verb, rest) {
            ("sends", ["raw" | "data"]) => {
                send(wanted_bytes(&step.below, &variables)?.ok_or("nothing to send")?);
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
                    format!("{} bytes are not taken", self.world.with(|state| state.connections[id].unsent))
                })?;
            }
            ("gets", ["data"]) => {
                let wanted = wanted_bytes(&step.below, &variables)?.ok_or("what data?")?;
                self.take_data(id, &wanted)?;
            }
            ("gets", ["closed"]) => self.closed(id)?,
            ("gets", ["rest"]) => self.rest(who, Extent::Whole, step)?,
            ("gets", ["rest", "cut"]) => self.rest(who, Extent::Cut, step)?,
            _ => return Err("unknown step".into()),
        }
        Ok(())
    }

    fn bind(&mut self, who: &str, id: usize) {
        self.used.insert(id);
        self.actors.insert(who.to_owned(), Actor { id, methods: VecDeque::new(), head: None });
    }

    fn connect(&mut self, who: &str, is_slow: bool) -> Result {
        let address = self.subject()?.address();
        let id = self.world.connect(address, is_slow)?;
        self.actors.insert(who.to_owned(), Actor { id, methods: VecDeque::new(), head: None });
        Ok(())
    }

    fn actor(&mut self, who: &str) -> Result<&mut Actor> {
        self.actors.get_mut(who).ok_or_else(|| format!("{who} has no connection"))
    }

    fn request(&mut self, who: &str, method: &str, target: &str, rest: &[&str], step: &Step) -> Result {
        let variables = self.variables();
        let bytes = self.request_bytes(method, target, rest, step, &variables)?;
        let actor = self.actor(who)?;
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

    fn respond(&mut self, who: &str, status: &str, words: &[&str], step: &Step) -> Result {
        let version = words.iter().find(|word| word.starts_with("HTTP/")).unwrap_or(&"HTTP/1.1");
        let mode = words.iter().find_map(|word| Mode::of(word)).unwrap_or(Mode::Length);
        let variables = self.variables();
        let usual = usual_of_response(&variables, !status.starts_with('1'));
        let bytes = message(&format!("{version} {status} Said"), &usual, &step.below, mode, &variables)?;
        let id = self.actor(who)?.id;
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
    fn response(&mut self, who: &str, words: &[&str], step: &Step) -> Result {
        let awaited = Awaited::of(words)?;
        let actor = self.actor(who)?;
        let id = actor.id;
        let is_final = !awaited.first.starts_with('1') || awaited.first == "101";
        let first = if is_final { actor.methods.pop_front() } else { actor.methods.front().cloned() };
        let method = awaited.method.clone().or(first).unwrap_or_else(|| "GET".to_owned());
        let head = self.take_head(id)?;
        let framing = head.framing(Some(&method))?;
        if head.status()?.to_string() != awaited.first {
            let came = self.world.with(|state| shown(&state.connections[id].came));
            return Err(format!("{}; behind it {came}", all(&head)));
        }
        self.message(who, head, framing, awaited.extent, step)
    }

    fn take_request(&mut self, who: &str, words: &[&str], step: &Step) -> Result {
        let awaited = Awaited::of(words)?;
        let first = self.variables().replace(&awaited.first);
        let id = self.find_request(who, &first, awaited.place)?;
        self.bind(who, id);
        let head = self.take_head(id)?;
        let framing = head.framing(None)?;
        self.message(who, head, framing, awaited.extent, step)
    }

    /// Finds the connection with a matching request: first that of `who`, then unassigned ones,
    /// then the others'.
    fn find_request(&self, who: &str, first: &str, place: Place) -> Result<usize> {
        let own = self.actors.get(who).map(|actor| actor.id);
        let found = self.world.wait(|state| {
            let with_it = (0..state.connections.len()).filter(|id| {
                let connection = &state.connections[*id];
                let is_it = connection
                    .came
                    .strip_prefix(first.as_bytes())
                    .is_some_and(|rest| rest.starts_with(b" ") || rest.starts_with(b"\r"));
                connection.side == Side::Origin && !connection.is_left && is_it
            });
            let rank = |id: &usize| match place {
                Place::Any if Some(*id) == own => Some(0),
                Place::Any => Some(1 + u8::from(self.used.contains(id))),
                Place::New => (!self.used.contains(id)).then_some(0),
                Place::Same => (Some(*id) == own).then_some(0),
            };
            with_it.filter(|id| rank(id).is_some()).min_by_key(rank)
        });
        found.ok_or_else(|| "no such request came".to_owned())
    }

    /// Checks the head, and the body as far as `extent` requires.
    fn message(&mut self, who: &str, head: Head, framing: Framing, extent: Extent, step: &Step) -> Result {
        if extent == Extent::Head {
            check(&head, None, &step.below, &self.variables())?;
            self.actor(who)?.head = Some((head, framing));
            return Ok(());
        }
        let id = self.actor(who)?.id;
        let body = self
            .take_body(id, framing, extent == Extent::Cut)
            .map_err(|what| format!("{what}; {}", all(&head)))?;
        check(&head, Some(&body), &step.below, &self.variables())
    }

    /// Checks the rest of a body after its head was checked by an earlier step.
    fn rest(&mut self, who: &str, extent: Extent, step: &Step) -> Result {
        let actor = self.actor(who)?;
        let id = actor.id;
        let (head, framing) = actor.head.take().ok_or("the rest of what?")?;
        let body = self.take_body(id, framing, extent == Extent::Cut)?;
        check(&head, Some(&body), &step.below, &self.variables())
    }

    fn take_head(&self, id: usize) -> Result<Head> {
        let taken = self.world.wait(|state| {
            let connection = &mut state.connections[id];
            match Head::read(&connection.came) {
                Ok(Some((head, len))) => {
                    connection.came.drain(..len);
                    Some(Ok(head))
                }
                Ok(None) => connection.end.clone().map(|end| Err(format!("the connection ended: {end:?}"))),
                Err(what) => Some(Err(what)),
            }
        });
        taken.unwrap_or_else(|| Err("nothing came, or not all of it".to_owned()))
    }

    fn take_body(&self, id: usize, framing: Framing, is_cut: bool) -> Result<Body> {
        let taken = self.world.wait(|state| {
            let connection = &mut state.connections[id];
            let came = match body(&connection.came, framing, connection.end == Some(End::Closed)) {
                Ok(came) => came,
                Err(what) => return Some(Err(what)),
            };
            let (body, is_whole) = match came {
                Came::Whole(body) => (body, true),
                Came::Part(body) => (body, false),
            };
            if !is_whole && connection.end.is_none() {
                return None;
            }
            connection.came.drain(..body.used);
            Some(match (is_whole, is_cut) {
                (true, false) | (false, true) => Ok(body),
                (true, true) if !is_short(framing) => {
                    Err("the end of the connection looks like the end of the body".to_owned())
                }
                (true, true) => Err(format!("the body is complete: {}", shown(&body.bytes))),
                (false, false) => {
                    Err(format!("the connection ended ({:?}) behind {}", connection.end, shown(&body.bytes)))
                }
            })
        });
        taken.unwrap_or_else(|| Err("the body did not end".to_owned()))
    }

    /// Checks the next bytes, without framing.
    fn take_data(&self, id: usize, wanted: &[u8]) -> Result {
        let taken = self.world.wait(|state| {
            let connection = &mut state.connections[id];
            let is_enough = connection.came.len() >= wanted.len();
            is_enough.then(|| connection.came.drain(..wanted.len()).collect::<Vec<_>>())
        });
        match taken {
            Some(taken) if taken == wanted => Ok(()),
            Some(taken) => Err(format!("other bytes came: {}", shown(&taken))),
            None => Err("less came".to_owned()),
        }
    }

    /// Ends a connection or half of it, and waits until that is done, before the next step.
    fn ends(&self, id: usize, end: impl Fn(&mut Connection)) -> Result {
        self.world.with(|state| end(&mut state.connections[id]));
        let ended = self.world.wait(|state| (state.connections[id].unended == 0).then_some(()));
        ended.ok_or_else(|| "what was sent before it is not taken".to_owned())
    }

    fn closed(&self, id: usize) -> Result {
        self.world
            .wait(|state| {
                let connection = &state.connections[id];
                (connection.end.is_some() && connection.came.is_empty()).then_some(())
            })
            .ok_or_else(|| "it is open, or more came on it".to_owned())
    }

    /// Repeats a request on new connections until the response is as expected: for asynchronous
    /// work of the proxy.
    fn ask(&mut self, method: &str, target: &str, words: &[&str], step: &Step) -> Result {
        let (asked, wanted): (Vec<_>, Vec<_>) =
            step.below.iter().cloned().partition(|(_, line)| line.starts_with('>'));
        let asked = asked.into_iter().map(|(at, line)| (at, line[1..].trim().to_owned()));
        let asked = Step { line: step.line, text: step.text.clone(), below: asked.collect() };
        let wanted = Step { line: step.line, text: step.text.clone(), below: wanted };
        let mut said = Ok(());
        let held = crate::wait_until(ASK_LIMIT, || {
            said = self
                .connect("asking", false)
                .and_then(|()| self.request("asking", method, target, &[], &asked));
            said = said.clone().and_then(|()| self.response("asking", words, &wanted));
            let id = self.actors.get("asking").map(|actor| actor.id);
            self.world.with(|state| id.into_iter().for_each(|id| state.connections[id].close()));
            said.is_ok()
        });
        if held { Ok(()) } else { said }
    }

    /// Waits until the proxy has read all bytes sent before: it then has forwarded a later request.
    fn sync(&mut self) -> Result {
        let is_sent = |state: &mut State| state.connections.iter().all(|connection| connection.unsent == 0);
        let sent = self.world.wait(|state| is_sent(state).then_some(()));
        sent.ok_or("what was sent before it is not taken")?;
        let target =
            if self.is_forward { format!("http://{}{SYNC_PATH}", self.origin) } else { SYNC_PATH.to_owned() };
        let fields = [(0, "Connection: close".to_owned()), (0, "Cache-Control: no-store".to_owned())];
        let step = Step { line: 0, text: String::new(), below: fields.to_vec() };
        self.connect("syncing", false)?;
        self.request("syncing", "GET", &target, &[], &step)?;
        let found = self.world.wait(|state| {
            let is_it = |id: &usize| state.connections[*id].came.starts_with(b"GET /.sync ");
            (0..state.connections.len()).find(is_it)
        });
        let id = found.ok_or("sync did not come through")?;
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
            let is_unread = |connection: &&Connection| !connection.is_left && !connection.came.is_empty();
            let unread = state.connections.iter().filter(is_unread);
            let said = unread.map(|connection| {
                format!("; unread by a {:?}: {}", connection.side, shown(&connection.came))
            });
            said.collect::<Vec<_>>().concat()
        })
    }

    /// Ends all connections. If all steps passed, unexpected bytes are a failure.
    fn end(mut self, is_well: bool) -> Result {
        self.stop();
        self.world
            .with(|state| state.connections.iter_mut().for_each(|connection| connection.is_paused = false));
        let ended = !is_well
            || self.world.wait(|state| {
                let is_open = |connection: &Connection| connection.end.is_none() && !connection.is_left;
                (!state.connections.iter().any(is_open)).then_some(())
            }) == Some(());
        let unread = self.unread();
        self.world.refuse(self.origin);
        self.world.with(|state| state.connections.iter_mut().for_each(Connection::close));
        match (is_well, ended, unread.is_empty()) {
            (true, false, _) => Err("the proxy has stopped and its connections have not".to_owned()),
            (true, true, false) => Err(format!("more came{unread}")),
            _ => Ok(()),
        }
    }
}

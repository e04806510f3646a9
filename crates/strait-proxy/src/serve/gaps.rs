//! Gaps: requests for missing bytes of a representation, made from the request of the client that
//! needs them, or that has begun the fill before the gap. [`crate::serve::ranges`] sends the bytes.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use strait_http::cache_control::OfRequest;
use strait_http::framing::BodyFraming;
use strait_http::head::Request;
use strait_http::partial::strong_validator;
use strait_http::storing::{StorableRequest, may_store};
use tokio::time::timeout;

use crate::cache::fill::{Fill, Follower, REQUEST_BYTES};
use crate::cache::fill_guard::FillGuard;
use crate::cache::fill_task::FillTask;
use crate::cache::fills::PartStep;
use crate::cache::generation::Generation;
use crate::cache::object::{Object, RECORDS_MAX};
use crate::cache::worker::Worker;
use crate::config::file::Abandoned;
use crate::config::rules::RequestRules;
use crate::config::sites::Resource;
use crate::config::variables::Variables;
use crate::io::gate::{Key, Permit};
use crate::serve::exchange::Exchange;
use crate::serve::route::read_ruled;
use crate::serve::storing::{object, with_fields_of};
use crate::serve::wanted::Wanted;
use crate::upstream::error::FetchError;
use crate::upstream::fetch::fetch;
use crate::upstream::origin_request::{OriginRequest, Purpose};

/// Returns the rules for requests of a resource, with the values that they have for the exchange.
fn rules_of(exchange: &Exchange<'_, '_>, resource: &Resource<'_>) -> Option<Arc<RequestRules>> {
    let rules = resource.manner.rules.and_then(|rules| rules.request.as_ref())?;
    if !rules.has_variables {
        return Some(rules.clone());
    }
    let (client, uri) = (exchange.peer.ip(), &resource.uri);
    // The exchange has got values that fit.
    rules.filled(&Variables { client, uri, method: exchange.request.method }).map(Arc::new)
}

/// Records of a key from which on no parts are requested ahead of a fill. It leaves space for those
/// of the fill itself, and for other variants.
pub(crate) const PARTS_MAX: usize = RECORDS_MAX / 2;

/// Longest wait of a fill for the response with the rest. Meanwhile it reads nothing, and its
/// clients wait.
const REST_WAIT_MAX: Duration = Duration::from_secs(5);

/// Client's request from which gaps are requested.
#[derive(Debug)]
pub(crate) struct GapRequest {
    pub(crate) worker: Rc<Worker>,
    pub(crate) hash: u64,
    key: Arc<str>,
    /// Generation of the key at the time of the request.
    generation: Generation,
    pub(crate) directives: OfRequest,
    /// Head of the client's request, and the rules that change it.
    head: Vec<u8>,
    rules: Option<Arc<RequestRules>>,
    /// Request for the whole representation.
    whole: OriginRequest,
}

/// Reason why a gap is not filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GapError {
    /// The origin has answered with the whole representation, with another one, or with a shorter
    /// part.
    Whole,
    /// The origin failed or refused the part, or the part may not be stored.
    Refused,
    /// A limit is reached.
    Limited,
}

impl GapError {
    /// Notes it at the fill for which the gap was requested, if the origin is the reason.
    pub(crate) fn note_at(self, fill: &Fill) {
        if self != Self::Limited {
            fill.note_refusal(self == Self::Whole);
        }
    }
}

impl GapRequest {
    pub(crate) fn new(exchange: &Exchange<'_, '_>, wanted: &Wanted<'_>) -> Self {
        Self {
            worker: exchange.worker.clone(),
            hash: wanted.hash,
            key: wanted.key.clone(),
            generation: wanted.generation.clone(),
            directives: wanted.directives,
            head: exchange.raw.to_vec(),
            rules: rules_of(exchange, wanted.resource),
            whole: exchange.origin_request(wanted.resource, BodyFraming::None, Purpose::Store),
        }
    }

    /// Returns the request for the gaps in a response whose fill may have to skip bytes; `None` if
    /// the response is too short, or its parts cannot be combined.
    pub(crate) fn for_long(
        exchange: &Exchange<'_, '_>,
        wanted: &Wanted<'_>,
        task: &FillTask,
    ) -> Option<Rc<Self>> {
        let is_long = task.range.end < u64::MAX && task.range.end - task.range.start > 2 * REQUEST_BYTES;
        let is_part = || strong_validator(&task.object.fields()).is_some();
        (is_long && is_part()).then(|| Rc::new(Self::new(exchange, wanted)))
    }

    /// Returns the client's request, as rules change it.
    pub(crate) fn request(&self) -> Option<Request<'_>> {
        read_ruled(self.worker.settings(), &self.head, self.rules.as_deref())
    }

    /// Request for the whole representation.
    pub(crate) fn whole(&self) -> &OriginRequest {
        &self.whole
    }

    /// Requests the gap for which the guard's fill has begun, and starts its fill task.
    pub(crate) async fn fill(
        self: &Rc<Self>,
        guard: FillGuard,
        base: &Object,
        permit: Option<Permit>,
    ) -> Result<Follower, GapError> {
        Ok(self.begin(self.task(guard, base, (permit, None)).await?))
    }

    /// Starts the fill task of a part.
    pub(crate) fn begin(self: &Rc<Self>, task: FillTask) -> Follower {
        let follower = task.guard.fill.follow();
        task.begin();
        tokio::task::spawn_local(run(task, Some(self.clone())));
        follower
    }

    /// Requests a gap. Its bytes must be the first ones of the gap, of the representation of
    /// `base`. Waits for the permits of the client's and of the origin's gate that are missing.
    async fn task(
        &self,
        guard: FillGuard,
        base: &Object,
        (client_permit, origin_permit): (Option<Permit>, Option<Permit>),
    ) -> Result<FillTask, GapError> {
        let (worker, gap) = (&self.worker, guard.fill.range());
        let mut origin_request = self.whole.again();
        origin_request.add_range(&gap, strong_validator(&base.fields()));
        origin_request.client_permit = client_permit;
        origin_request.origin_permit = origin_permit;
        origin_request.announce(&guard.fill.sent);
        let fetched = fetch(&worker.upstream(), &mut origin_request, None).await;
        let incoming = fetched.map_err(|error| match error {
            FetchError::Origin(error) if error.is_of_limit() => GapError::Limited,
            _ => GapError::Refused,
        })?;
        if incoming.status == 200 {
            return Err(GapError::Whole);
        }
        let Some(request) = self.request() else { return Err(GapError::Refused) };
        let (directives, key) = (&self.directives, &self.key);
        let made = object(worker, true, &request, directives, key, (&incoming, &incoming.response()));
        let (part, range) = made
            .filter(|(part, range)| {
                incoming.status == 206 && range.start == gap.start && part.combines_with(base)
            })
            .ok_or(GapError::Refused)?;
        // An origin that limits the length of parts would need too many requests.
        if range.end != gap.end {
            return Err(GapError::Whole);
        }
        let part = with_fields_of(worker, &request, &part, range.start, base);
        if !part.is_for_same(base) {
            return Err(GapError::Refused);
        }
        FillTask::new(guard, Arc::new(part), incoming, range).map_err(|_| GapError::Limited)
    }

    /// Returns true if a part of `base` may be requested as far as that shows before: the origin
    /// accepts ranges, the part may be stored (the request has no Authorization, or the response
    /// allows it), and the store may take another part for the key.
    pub(crate) fn may_request(&self, base: &Object) -> bool {
        let settings = self.worker.settings();
        let Some(request) = self.request() else { return false };
        let (fields, directives, own) = (&request.fields, self.directives, base.fields());
        let has_other_cookie = self.worker.has_other_cookie(fields);
        let storable =
            StorableRequest { method: request.method, fields, directives, is_range: true, has_other_cookie };
        let store = self.worker.shared.store.as_ref();
        store.is_some_and(|store| store.find(self.hash).len() < PARTS_MAX)
            && !own.elements("accept-ranges").any(|unit| unit.eq_ignore_ascii_case("none"))
            && may_store(&settings.storing, &storable, base.status, &own, &base.directives).is_ok()
    }

    /// Returns the stored response with the same representation as `base`.
    pub(crate) fn stored(&self, base: &Object) -> Option<Arc<Object>> {
        let request = self.request()?;
        let found = self.worker.find(self.hash, &self.key, &request.fields).ok()?;
        (found.is_for_same(base) && found.combines_with(base)).then_some(found)
    }

    /// Returns the guard of a fill of a part. If the key was invalidated since the request, the
    /// part gets fields of a removed response: it is sent, but neither stored nor shared.
    pub(crate) fn guard(&self, fill: Arc<Fill>) -> FillGuard {
        if !self.generation.holds(&self.key) {
            self.worker.shared.fills.keep_out(self.hash, &fill);
        }
        FillGuard::new(&self.worker, self.hash, fill)
    }

    /// Takes the permits of both gates if they are free. A fill holds a connection itself: waiting
    /// fills could use up the gates and would wait for each other.
    fn try_enter(&self) -> Option<(Option<Permit>, Option<Permit>)> {
        let (gates, server) = (&self.worker.shared.gates, &self.whole.origin.server);
        let client = gates.try_enter(Key::OriginOf(server.clone(), self.whole.client))?;
        let origin = gates.try_enter(Key::Origin(server.clone()))?;
        Some((Some(client), Some(origin)))
    }

    /// Lets other fills receive the rest of a response: begins a fill of the first gap and all that
    /// follows. Returns false if the task has to read on, because the origin has not begun another
    /// response.
    async fn begin_rest(self: &Rc<Self>, task: &FillTask, rest: Range<u64>) -> bool {
        let (worker, fills) = (&self.worker, &self.worker.shared.fills);
        let (fill, base) = (&task.guard.fill, &task.object);
        // Otherwise a later request completes the object.
        let is_wanted = fill.followers() > 0 || worker.settings().abandoned == Abandoned::Finish;
        let mut at = rest.start;
        for _ in 0..RECORDS_MAX {
            if at >= rest.end || !is_wanted {
                return true;
            }
            let begun = match fills.begin_part(self.hash, base, at..rest.end) {
                PartStep::Begun(begun) => begun,
                // Its own task cares for the bytes up to there.
                PartStep::UnderWay(other) => {
                    at = other.range().end;
                    continue;
                }
                PartStep::Full => return false,
            };
            let guard = self.guard(begun);
            let stored = self.stored(base);
            if let Some(len) = stored.as_ref().and_then(|stored| stored.stored_len(at)) {
                at += len;
                continue;
            }
            if fill.refuses_ranges() {
                return false;
            }
            // It ends early in its turn.
            guard.fill.set_end(rest.end);
            let Some(permits) = self.try_enter() else { return false };
            let requested = timeout(REST_WAIT_MAX, self.task(guard, base, permits)).await;
            let next = match requested.unwrap_or(Err(GapError::Refused)) {
                Ok(next) => next,
                Err(error) => {
                    error.note_at(fill);
                    return false;
                }
            };
            let parts = stored.iter().flat_map(|stored| stored.parts());
            let stand_in = self.begin(next);
            parts.for_each(|part| stand_in.fill().offer_skip(part, None));
            // Clients of the first fill need the bytes of the next one.
            let first = fill.clone();
            tokio::task::spawn_local(async move {
                first.abandoned().await;
                drop(stand_in);
            });
            return true;
        }
        false
    }
}

/// Runs a fill to its end, or up to bytes that another fill receives if what follows these is
/// received by others.
pub(crate) async fn run(mut task: FillTask, request: Option<Rc<GapRequest>>) {
    while let Some((arrived, rest)) = task.run().await {
        task = arrived;
        let may_end = match &request {
            Some(request) => request.begin_rest(&task, rest.clone()).await,
            None => false,
        };
        if may_end {
            task.end_here();
            return;
        }
        task.read_on(rest);
    }
}

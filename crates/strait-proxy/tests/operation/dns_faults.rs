//! DNS servers that fail, and ones that lie.

use std::thread;

use hickory_resolver::proto::rr::RecordType;
use lab::wait_until;

use crate::dns::await_addresses;
use crate::dns_rig::{DnsServer, Fault, addresses, alias, srv};
use crate::pool_rig::{Rig, Server};
use crate::rig::LIMIT;

/// Returns the lookups of the only name that ended without an answer.
fn failures(rig: &Rig) -> u64 {
    rig.admin_status()["names"][0]["failures"].as_u64().unwrap()
}

#[test]
fn last_addresses_serve_while_the_dns_server_is_down() {
    let faults = [Fault::Fails, Fault::Silent, Fault::WrongId, Fault::WrongName, Fault::Garbage];
    // Some take as long as the resolver waits.
    thread::scope(|scope| {
        for fault in faults {
            scope.spawn(move || last_addresses_serve(fault));
        }
    });
}

fn last_addresses_serve(fault: Fault) {
    let (dns, server) = (DnsServer::start(), Server::at("127.0.0.2", 0));
    dns.set(addresses("app.test", 1, &["127.0.0.2"]));
    let rig = Rig::of(&[&format!("app.test:{}", server.port())], "", &dns.section());
    await_addresses(&rig, &["127.0.0.2"]);
    dns.become_fault(fault);
    dns.set(addresses("app.test", 1, &["127.0.0.9"]));
    assert!(wait_until(LIMIT * 3, || failures(&rig) > 0), "{fault:?}");
    for _ in 0..4 {
        assert_eq!(rig.client().get("/x").status(), 200, "{fault:?}");
    }
    await_addresses(&rig, &["127.0.0.2"]);
    assert!(rig.admin_status()["names"][0]["error"].is_string(), "{fault:?}");
    // Once it answers again its records apply.
    dns.become_fault(Fault::None);
    dns.set(addresses("app.test", 1, &["127.0.0.2", "127.0.0.3"]));
    let count = || rig.admin_status()["names"][0]["addresses"].as_array().unwrap().len();
    assert!(wait_until(LIMIT * 3, || count() == 2), "{fault:?}");
}

#[test]
fn name_without_records_gets_503_until_there_are_some() {
    let (dns, server) = (DnsServer::start(), Server::at("127.0.0.2", 0));
    for text in [format!("app.test:{}", server.port()), "srv://_http._tcp.app.test".to_owned()] {
        dns.set(Vec::new());
        let rig = Rig::of(&[&text], "", &dns.section());
        let answer = rig.client().get("/x");
        assert_eq!((answer.status(), answer.field("retry-after").is_some()), (503, true), "{text}");
        let mut records = addresses("app.test", 1, &["127.0.0.2"]);
        records.push(srv("_http._tcp.app.test", 1, (0, 0, server.port()), "app.test"));
        dns.set(records);
        assert!(wait_until(LIMIT, || rig.client().get("/x").status() == 200), "{text}");
        await_addresses(&rig, &["127.0.0.2"]);
        // Both kinds of absence: the records are gone, and the name is.
        for records in [vec![alias("app.test", 1, "none.test")], Vec::new()] {
            dns.set(records);
            let lookups = rig.admin_status()["names"][0]["lookups"].as_u64().unwrap();
            let has_looked = || rig.admin_status()["names"][0]["lookups"].as_u64().unwrap() > lookups + 1;
            assert!(wait_until(LIMIT, has_looked));
            assert_eq!(rig.client().get("/x").status(), 200, "{text}: for a while");
        }
        assert_eq!(failures(&rig), 0, "{text}: there were answers");
    }
}

#[test]
fn family_that_is_not_answered_keeps_its_addresses() {
    let (dns, server) = (DnsServer::start(), Server::at("127.0.0.2", 0));
    dns.set(addresses("app.test", 1, &["127.0.0.2", "::1"]));
    let rig = Rig::of(&[&format!("app.test:{}", server.port())], "", &dns.section());
    let expected: &[&str] = if has_v6() { &["127.0.0.2", "::1"] } else { &["127.0.0.2"] };
    await_addresses(&rig, expected);
    dns.become_fault(Fault::FailsFor(RecordType::AAAA));
    dns.set(addresses("app.test", 1, &["127.0.0.2", "127.0.0.3"]));
    let expected: &[&str] =
        if has_v6() { &["127.0.0.2", "127.0.0.3", "::1"] } else { &["127.0.0.2", "127.0.0.3"] };
    await_addresses(&rig, expected);
}

#[test]
fn service_whose_alias_is_not_answered_keeps_its_servers() {
    let (dns, server) = (DnsServer::start(), Server::at("127.0.0.2", 0));
    let mut records = addresses("target.test", 1, &["127.0.0.2"]);
    records.push(alias("_http._tcp.app.test", 1, "service.test"));
    records.push(srv("service.test", 1, (0, 0, server.port()), "target.test"));
    dns.set(records);
    let rig = Rig::of(&["srv://_http._tcp.app.test"], "", &dns.section());
    await_addresses(&rig, &["127.0.0.2"]);
    dns.become_fault(Fault::FailsFor(RecordType::CNAME));
    assert!(wait_until(LIMIT, || failures(&rig) > 1));
    await_addresses(&rig, &["127.0.0.2"]);
    assert_eq!(rig.client().get("/x").status(), 200);
}

fn has_v6() -> bool {
    std::net::UdpSocket::bind("[::]:0").is_ok_and(|socket| socket.connect("[::1]:9").is_ok())
}

#[test]
fn truncated_response_is_repeated_by_tcp() {
    let (dns, server) = (DnsServer::start(), Server::at("127.0.0.2", 0));
    dns.become_fault(Fault::Truncates);
    dns.set(addresses("app.test", 60, &["127.0.0.2"]));
    let rig = Rig::of(&[&format!("app.test:{}", server.port())], "", &dns.section());
    await_addresses(&rig, &["127.0.0.2"]);
    assert!(dns.asked_by_tcp() > 0);
    assert_eq!(rig.client().get("/x").status(), 200);
}

#[test]
fn addresses_and_targets_are_bounded() {
    let dns = DnsServer::start();
    let all: Vec<_> = (0..600).map(|at| format!("127.1.{}.{}", at / 200, at % 200 + 1)).collect();
    let all: Vec<_> = all.iter().map(String::as_str).collect();
    dns.set(addresses("app.test", 1, &all));
    let rig = Rig::of(&["app.test:80"], "", &dns.section());
    let count = || rig.admin_status()["servers"].as_array().unwrap().len();
    assert!(wait_until(LIMIT, || count() == 256), "{}", count());
    // Another order of the records changes nothing.
    let before = rig.admin_status()["names"][0]["addresses"].clone();
    let reversed: Vec<_> = all.iter().rev().copied().collect();
    dns.set(addresses("app.test", 1, &reversed));
    let lookups = rig.admin_status()["names"][0]["lookups"].as_u64().unwrap();
    assert!(wait_until(LIMIT, || rig.admin_status()["names"][0]["lookups"].as_u64().unwrap() > lookups + 1));
    assert_eq!(rig.admin_status()["names"][0]["addresses"], before);
    // A service has at most 64 targets: those with the least priorities.
    let mut records = Vec::new();
    for at in 0..200 {
        let target = format!("t{at}.test");
        records.extend(addresses(&target, 60, &[all[usize::from(at)]]));
        records.push(srv("_http._tcp.app.test", 60, (200 - at, 1, 80), &target));
    }
    dns.set(records);
    let rig = Rig::of(&["srv://_http._tcp.app.test"], "", &dns.section());
    let addresses = || rig.admin_status()["names"][0]["addresses"].as_array().unwrap().clone();
    assert!(wait_until(LIMIT, || addresses().len() == 64), "{}", addresses().len());
    assert_eq!(addresses()[0], all[199]);
}

#[test]
fn loop_of_aliases_ends_without_an_address() {
    let dns = DnsServer::start();
    dns.set(vec![
        alias("app.test", 1, "b.test"),
        alias("b.test", 1, "c.test"),
        alias("c.test", 1, "app.test"),
    ]);
    let rig = Rig::of(&["app.test:80"], "", &dns.section());
    assert!(wait_until(LIMIT, || rig.admin_status()["names"][0]["error"].is_string()));
    assert_eq!(rig.client().get("/x").status(), 503);
    let asked = dns.asked();
    assert!(asked < 1000, "{asked}");
}

#[test]
fn aliases_of_a_service_are_bounded() {
    let (dns, server) = (DnsServer::start(), Server::at("127.0.0.2", 0));
    let chain = |length: usize| {
        let name = |at: usize| if at == 0 { "_http._tcp.app.test".to_owned() } else { format!("a{at}.test") };
        let mut records = addresses("target.test", 1, &["127.0.0.2"]);
        records.extend((0..length).map(|at| alias(&name(at), 1, &name(at + 1))));
        records.push(srv(&name(length), 1, (0, 0, server.port()), "target.test"));
        records
    };
    for records in [chain(9), vec![alias("_http._tcp.app.test", 1, "_http._tcp.app.test")]] {
        dns.set(records);
        let rig = Rig::of(&["srv://_http._tcp.app.test"], "", &dns.section());
        assert_eq!(rig.client().get("/x").status(), 503);
        dns.set(chain(8));
        assert!(wait_until(LIMIT, || rig.client().get("/x").status() == 200));
    }
}

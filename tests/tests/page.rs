//! The page, in a real browser, under a real flood.

use std::{thread::sleep, time::Duration};

use limiter_tests::{
    browser::{DESK, PHONE, Window, document, picture},
    http::{self, Answer, METRICS},
    scene::Scene,
};
use limiter_user::api::View;

const PAGE: &str = "http://127.0.0.1:9898/";

fn get(scene: &Scene, path: &str) -> Answer {
    http::get(&scene.net.server, METRICS, path)
}

#[test]
fn it_shows_who_what_how_much_and_what_is_done() {
    let scene = Scene::new();
    let server = &scene.net.server;
    // What an operator writes is text, whatever it looks like.
    let _ = scene.daemon.ask("ban add 198.51.100.99 --reason <script>alert(1)</script>");
    sleep(Duration::from_secs(5));
    let directory = tempfile::tempdir().expect("a directory");
    for (name, window) in
        [("light", DESK), ("dark", Window { dark: true, ..DESK }), ("phone", PHONE)]
    {
        let file = directory.path().join(format!("{name}.png"));
        assert_eq!(picture(server, PAGE, window, &file), "", "complaints of the script");
    }
    let (head, shown) = {
        let shown = document(server, PAGE, DESK);
        let (head, shown) = shown.split_once("<main>").expect("a page");
        (head.to_owned(), shown.split_once("<script>").expect("a script").0.to_owned())
    };
    for part in ["<title>ATTACK", ">ok<", "Attack</b>", "203.0.113.9", "packets/s dropped"] {
        assert!(head.contains(part), "'{part}' is not in {head}");
    }
    for part in [
        // Traffic by reason.
        "<svg",
        "source rate, dropped",
        "source rate, would be dropped",
        "banned, dropped",
        "malformed, dropped",
        // Who.
        ">203.0.113.9<",
        ">203.0.113.66<",
        // Policies, their limits, and how near each is to them.
        ">web<",
        ">game<",
        ">observe<",
        "500/s, burst 1000",
        "/24 and /48",
        "everybody",
        "class=\"meter over\"",
        "203.0.113.0/24",
        // Bans, with the time left.
        "scanners",
        "9 min ",
        "59 min ",
        "for ever",
        "2001:db8:bad::/48",
        "&lt;script&gt;alert(1)&lt;/script&gt;",
        // Interfaces, generation, what is pending.
        ">eth0<",
        ">native<",
        ">protected<",
        "pending confirm</dt><dd>none",
        "generation</dt><dd>",
    ] {
        assert!(shown.contains(part), "'{part}' is not in {shown}");
    }
}

#[test]
fn it_is_of_one_piece_and_only_for_reading() {
    let scene = Scene::new();
    sleep(Duration::from_secs(3));
    let page = get(&scene, "/");
    assert_eq!(page.status, 200);
    assert!(page.head.contains("text/html"), "{}", page.head);
    let policy = page.head.lines().find_map(|line| line.strip_prefix("content-security-policy: "));
    let policy = policy.expect("a policy");
    for part in ["default-src 'none'", "connect-src 'self'", "script-src 'sha256-"] {
        assert!(policy.contains(part), "{policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    let foreign = page.body.replace("http://www.w3.org/2000/svg", "");
    for word in ["http:", "https:", "src=", "innerHTML", "url("] {
        assert!(!foreign.contains(word), "{word}");
    }
    let answer = get(&scene, "/page.json");
    assert!(answer.status == 200 && answer.head.contains("application/json"), "{answer:?}");
    let view: View = serde_json::from_str(&answer.body).expect("a view");
    let names: Vec<_> = view.policies.iter().map(|it| it.limit.name.as_str()).collect();
    assert_eq!(names, ["web", "dns", "game", "rest"]);
    assert!(view.top.sources.len() <= 20 && view.bans.count == 4, "{view:?}");
    // Half of 60,000 packets/s from one source, which may send 200/s, and
    // whose prefix may send 2,000/s.
    let dns = &view.policies[1].use_of_limits;
    let shares: Vec<_> = dns.iter().map(|it| (it.level.as_str(), it.who.as_deref())).collect();
    assert_eq!(shares, [("source", Some("203.0.113.9")), ("prefix", Some("203.0.113.0/24"))]);
    assert!(dns[0].share > 20.0 && dns[1].share > 2.0 && dns[0].share > dns[1].share, "{dns:?}");

    for path in ["/", "/page.json"] {
        let ask = |request: String| {
            http::send(&scene.net.server, METRICS, &request).expect("an answer").status
        };
        assert_eq!(ask(format!("POST {path} HTTP/1.1\r\nHost: {METRICS}\r\n\r\n")), 405);
        assert_eq!(ask(format!("GET {path} HTTP/1.1\r\nHost: example.org\r\n\r\n")), 400);
    }
}

/// What waits to be confirmed, what observes, and what is wrong is told.
#[test]
fn it_says_what_is_unusual() {
    let scene = Scene::new();
    let server = &scene.net.server;
    let config = limiter_tests::scene::CONFIG.replace("500/s", "400/s");
    let write = move || std::fs::write("/run/next.toml", config);
    server.call(write).expect("a file");
    let output = scene.daemon.ctl("config apply /run/next.toml --confirm 60s");
    assert!(output.status.success(), "{output:?}");
    server.ip("link set eth0 down");
    sleep(Duration::from_secs(4));
    let shown = document(server, PAGE, DESK);
    for part in
        ["waits to be confirmed", "limiterctl config confirm", "400/s, burst 1000", ">down<"]
    {
        assert!(shown.contains(part), "'{part}' is not in {shown}");
    }
}

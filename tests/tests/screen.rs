//! `limiterctl top` on a terminal of 80 columns and 24 lines, under a flood.

use std::{thread::sleep, time::Duration};

use limiter_tests::{scene::Scene, terminal::Terminal};

const SIZE: (u16, u16) = (80, 24);

fn shown(scene: &Scene, arguments: &str, environment: &[(&'static str, &'static str)]) -> Terminal {
    let terminal = Terminal::start(&scene.net.server, arguments, SIZE, environment);
    terminal.wait_for_words("203.0.113.9 ");
    terminal
}

fn line<'a>(text: &'a str, words: &str) -> &'a str {
    text.lines().find(|line| line.contains(words)).unwrap_or_else(|| panic!("{words}: {text}"))
}

#[test]
fn it_shows_sorts_filters_bans_and_explains() {
    let scene = Scene::new();
    sleep(Duration::from_secs(4));
    let mut top = shown(&scene, "top", &[]);
    let text = top.wait_for_words("ATTACK");
    for words in ["eth0 native", "passed ", "dropped ", "would drop ", "why: source_rate"] {
        assert!(text.contains(words), "{words} is not in\n{text}");
    }
    assert!(text.lines().count() <= 24 && text.lines().all(|line| line.chars().count() <= 80));
    assert!(line(&text, "203.0.113.9 ").contains("source_rate dns"), "{text}");
    assert!(text.contains("source_rate game"), "{text}");
    assert!(line(&text, "sources (").contains("drop/s*"), "{text}");
    assert!(text.contains("q quit") && top.has_colour());

    top.press("s");
    top.wait_for_words("pass/s*");
    top.press("v");
    let text = top.wait_for_words("prefixes (");
    assert!(text.contains("203.0.113.0/24"), "{text}");
    top.press("vv");
    let text = top.wait_for_words("ports (");
    assert!(text.contains("udp 53"), "{text}");
    top.press("v/198.51.101\r");
    let text = top.wait_for("a filter", |text| {
        text.contains("[filter 198.51.101]") && !text.contains("203.0.113.9 ")
    });
    assert!(line(&text, "198.51.101.").contains("game"), "{text}");
    top.press("?");
    top.wait_for_words("ban the selected source");
    top.press("x/\x1b");
    top.wait_for_words("203.0.113.9 ");

    // Nobody is banned by one key.
    top.press("/203.0.113.9\r");
    top.wait_for("one source", |text| text.contains("sources (1)"));
    top.press("b");
    top.wait_for_words("ban 203.0.113.9 for an hour? y/n");
    top.press("n");
    top.wait_for("no question", |text| !text.contains("y/n"));
    assert!(!scene.daemon.bans().contains_key("203.0.113.9"));
    top.press("b");
    top.wait_for_words("y/n");
    top.press("y");
    top.wait_for_words("203.0.113.9 is banned for an hour");
    assert!(scene.daemon.bans().contains_key("203.0.113.9"));
    top.press("e");
    top.wait_for("an explanation", |text| text.contains("a packet of") && text.contains("banned"));
    top.press("x");
    top.press("p");
    top.wait_for_words(" paused ");
    top.press("q");
    let (status, top) = top.wait();
    assert!(status.success() && top.is_restored());
}

#[test]
fn it_needs_no_colour_and_no_daemon_that_stays() {
    let scene = Scene::new();
    sleep(Duration::from_secs(3));
    let mut top = shown(&scene, "top --sort packets", &[("NO_COLOR", "1"), ("TERM", "vt100")]);
    let text = top.wait_for_words("ATTACK");
    assert!(!top.has_colour());
    assert!(text.contains("s sort: packets"), "{text}");
    // Narrow and low as it may be, it draws.
    for (size, words) in [((40, 10), "limiterd"), ((20, 3), "203.0.113.9")] {
        let small = Terminal::start(&scene.net.server, "top", size, &[]);
        small.wait_for_words(words);
    }
    let Scene { net, .. } = &scene;
    let output =
        net.server.command(limiter_tests::host::binary("limiterctl")).arg("detach").output();
    assert!(output.expect("limiterctl").status.success());
    top.wait_for_words("asking again");
    top.press("\x03");
    let (status, top) = top.wait();
    assert!(status.success() && top.is_restored());
}

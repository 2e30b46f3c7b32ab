"""A league of a main agent and an exploiter in rock-paper-scissors, and its results."""

import runnel
from runnel.recording.match_log import payoffs_of, read_matches

league = runnel.League(
    every=8192,  # environment steps between two decisions
    places=4,  # policies that a learner plays against at a time
    main_exploiters=1,
    league_exploiters=0,
    patience=4,  # decisions after which an exploiter is reset
)
run = runnel.train(
    "ppo", "matrix:rock_paper_scissors", opponents=league, envs=64, steps=80_000, run_dir="runs/league", quiet=True
)

rounds = read_matches(run.run_dir)
for made in rounds:
    if made.group == "main-opponent":
        print(f"{made.env_steps:>6} steps: main plays {', '.join(made.places)}")
    elif made.began:
        print(f"{made.env_steps:>6} steps: {made.pool[-1]} is stored, and the exploiter is reset")

payoffs = payoffs_of(rounds)
newest = f"main:{max(result.version for result in runnel.policies(run).query('main'))}"
met = [key for key in payoffs.players() if payoffs.games(newest, key)]
for key in met:
    print(f"{newest} scores {payoffs.score(newest, key):.2f} against {key}")

main = runnel.load(run, group="main")
exploiter = runnel.load(run, group="main-exploiter")
match = runnel.versus(main, exploiter, episodes=200, explore=True)
print(f"main scores {match['score']:.2f} against the newest exploiter")

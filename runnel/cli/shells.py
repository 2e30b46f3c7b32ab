"""The script with which each shell asks `runnel` for completions. Printed by `runnel completion SHELL`.

bash passes the line so far, because it splits words at colons; the others pass the words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

BASH: Final = r"""_runnel() {
    local IFS=$'\n'
    COMPREPLY=($(runnel _complete bash "${COMP_LINE:0:COMP_POINT}" 2>/dev/null))
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[/=:@] ]] && compopt -o nospace 2>/dev/null
    return 0
}
complete -F _runnel runnel
"""

ZSH: Final = r"""#compdef runnel
_runnel() {
    local -a found
    found=("${(@f)$(runnel _complete zsh "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    compadd -S '' -- ${(M)found:#*[/=:@]}
    compadd -- ${found:#*[/=:@]}
}
compdef _runnel runnel
"""

FISH: Final = r"""function __runnel_complete
    set -l words (commandline -opc) (commandline -ct)
    runnel _complete fish $words[2..-1] 2>/dev/null
end
complete -c runnel -f -a '(__runnel_complete)'
"""

SHELLS: Final[Mapping[str, str]] = {"bash": BASH, "zsh": ZSH, "fish": FISH}
